"""Observers: how the range of a quantized tensor is chosen from calibration data.

`RangeObserver` takes the range whose expected squared error on a sample *like* those seen is smallest. Three
things add up: rounding inside the range, values of the seen samples outside it, and values of an unseen
sample outside it. The last term is what minimum/maximum and histogram observers leave out. After n samples the
next one exceeds the largest magnitude with probability 1 / (n + 1), and by an amount that is exponential in
distribution; its mean is estimated from how far the largest samples lie above the middle ones (the
peaks-over-threshold estimate of extreme value statistics: Coles, "An Introduction to Statistical Modeling of
Extreme Values", 2001, chapter 4). So a range is cut where outliers cost less than the steps they widen, and
has head room where samples differ; with more samples the head room shrinks by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torchao.quantization.pt2e.fake_quantize import FakeQuantize
from torchao.quantization.pt2e.observer import UniformQuantizationObserverBase

Function = Callable[[torch.Tensor], torch.Tensor]

BINS = 4096
FOLDS = 16
LARGEST = 2.0**126
"""Finite magnitudes beyond are taken for this, so that no sum and no bound of a histogram overflows float32."""
MASKED, MASK_GAP, MASK_LEVEL = 40.0, 20.0, -64.0
"""What may be a mask, in a tensor that only a softmax reads: a number so far below the largest (e^-40 is nothing), this
far below the smallest of the others, and below what scores are: the other classes of a sure classifier are no mask."""
SAMPLE_LIMIT = 1 << 16
"""Elements of one tensor that enter the histogram; more are thinned out evenly."""
FAR_END = 32
"""Selected elements beyond which the ends of the histogram begin."""

# HEAD_ROOM and the number of slices in _QUANTILES were chosen by the mean SQNR of 14 outputs of 10 networks (keyword
# spotting, images, faces, machine sounds), calibrated on 8 samples of three seeds and measured on 32 of two others.
# None of these data are used by a benchmark. From no to 0.1 head room and 4 to 12 slices the mean is 28.3 to 28.9 dB.
HEAD_ROOM = 0.05
FEW_SAMPLES = 8
"""Least mean excess of an unseen sample, relative to the largest magnitude seen, after up to `FEW_SAMPLES` samples;
it falls in proportion to the number of samples beyond."""

_FACTORS = torch.linspace(0.0, 2.5, 101, dtype=torch.float64)
_QUANTILES = -torch.log1p(-(torch.arange(4, dtype=torch.float64) + 0.5) / 4)
"""Midpoints of four equally likely slices of the unit exponential distribution."""


class RangeObserver(UniformQuantizationObserverBase):  # type: ignore[misc]
    """Observes an activation tensor, or a set of tensors with equal parameters; per tensor, affine.

    Args:
        dtype, qscheme, quant_min, quant_max, eps: As of torchao's observers.

    Attributes:
        min_val, max_val: Smallest and largest finite value seen.
        samples: How many samples were seen.
        non_finite: Whether an infinity or NaN was seen; they are ignored.
        places: How often the graph calls this observer in one run.
        functions: If only these functions of one variable read the tensor, the error is taken behind them, so
            that no steps are spent where they are flat.
        margin: If only softmaxes read the tensor, or additions before them (``sums``): how far below all others a
            number must be to become 0 in a softmax that reads it. Numbers like -1e9 or minus infinity, which are there
            for that, then do not widen the range to themselves, but by `distance`.
        sums: For each of these additions the observers of the sum and of what is added.
        masked: Whether there were such numbers.
    """

    def __init__(
        self,
        dtype: torch.dtype = torch.int8,
        qscheme: torch.qscheme = torch.per_tensor_affine,
        quant_min: int | None = None,
        quant_max: int | None = None,
        eps: float = 2.0**-40,
        is_dynamic: bool = False,
    ) -> None:
        super().__init__(
            dtype=dtype, qscheme=qscheme, quant_min=quant_min, quant_max=quant_max, eps=eps, is_dynamic=is_dynamic
        )
        self.min_val = math.inf
        self.max_val = -math.inf
        self.non_finite = False
        self.places = 1
        self.functions: tuple[Function, ...] = ()
        self.margin = 0.0
        self.sums: tuple[tuple[RangeObserver, RangeObserver], ...] = ()
        self.masked = False
        self._chosen: tuple[float, float] | None = None
        self._calls = 0
        self._bound = 0.0
        self._counts = torch.zeros(0, BINS, dtype=torch.float64)
        self._lows = torch.zeros(0, dtype=torch.float64)
        self._highs = torch.zeros(0, dtype=torch.float64)

    @property
    def samples(self) -> int:
        return -(-self._calls // self.places)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Notes ``x`` (any shape, float) and returns it unchanged."""
        if x.numel():
            self._note(x.detach())
        return x

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale (float32) and zero point of the chosen range; 1 and 0 if nothing was seen."""
        if not self._calls or self.min_val > self.max_val:
            return torch.ones(1), torch.zeros(1, dtype=torch.int64)
        low, high = self.range()
        scale, zero_point = self._calculate_qparams(torch.tensor([low]), torch.tensor([high]))
        return scale, zero_point

    def range(self) -> tuple[float, float]:
        """The chosen range; it contains 0."""
        if self._chosen is None:
            self._chosen = self._choose()
        low, high = self._chosen
        return (min(self.min_val - self.distance, 0.0), high) if self.masked else (low, high)

    @property
    def distance(self) -> float:
        """How far below all others masked numbers must be."""
        return max([self.margin, *(total.distance + other.span for total, other in self.sums)])

    @property
    def span(self) -> float:
        """From the smallest to the largest number that is not masked."""
        return max(self.max_val - self.min_val, 0.0)

    def _choose(self) -> tuple[float, float]:
        low, high = min(self.min_val, 0.0), max(self.max_val, 0.0)
        if not low < high:
            return low, high
        width = 2 * self._bound / BINS
        centres = (torch.arange(BINS, dtype=torch.float64) + 0.5) * width - self._bound
        functions: tuple[Function | None, ...] = self.functions or (None,)
        error = torch.zeros(len(_FACTORS), len(_FACTORS), dtype=torch.float64)
        step = (high * _FACTORS[None, :] - low * _FACTORS[:, None]) / (self.quant_max - self.quant_min)
        for f in functions:
            weight = float(self._counts.sum()) if f is None else _steepness(self._counts.sum(0), centres, f)
            error += weight / self.samples * step**2 / 12
            error += self._clipped(self._counts, centres, self._highs, f)[None, :]
            mirrored = None if f is None else _mirror(f)
            error += self._clipped(self._counts.flip(1), centres, -self._lows, mirrored)[:, None]
        error[step <= 0] = math.inf
        best = int(torch.argmin(error))
        return low * float(_FACTORS[best // len(_FACTORS)]), high * float(_FACTORS[best % len(_FACTORS)])

    # ---- statistics ----------------------------------------------------------------------------------

    def _note(self, values: torch.Tensor) -> None:
        flat = values.flatten().float()
        flat = torch.where(torch.isfinite(flat), flat.clamp(-LARGEST, LARGEST), flat)
        if self.margin or self.sums:
            flat = self._without_masked(flat)
        low, high = (float(v) for v in torch.aminmax(flat))
        if not (math.isfinite(low) and math.isfinite(high)):
            self.non_finite = True
            flat = flat[torch.isfinite(flat)]
            if not flat.numel():
                return
            low, high = (float(v) for v in torch.aminmax(flat))
        self._chosen = None
        fold = self._calls // self.places % FOLDS
        self._calls += 1
        self.min_val, self.max_val = min(self.min_val, low), max(self.max_val, high)
        if fold == len(self._lows):
            self._counts = torch.cat([self._counts, torch.zeros(1, BINS, dtype=torch.float64)])
            self._lows, self._highs = (
                torch.cat([v, torch.zeros(1, dtype=torch.float64)]) for v in (self._lows, self._highs)
            )
        self._lows[fold] = min(float(self._lows[fold]), low)
        self._highs[fold] = max(float(self._highs[fold]), high)
        self._widen(max(-low, high))
        if self._bound:
            self._counts[fold] += self._histogram(flat)

    def _without_masked(self, flat: torch.Tensor) -> torch.Tensor:
        """Without what is far below all others. A gap tells it from the tail of a wide distribution."""
        far = flat < min(float(flat.amax()) - MASKED, MASK_LEVEL)
        near, beyond = flat[~far], flat[far]
        if not beyond.numel() or not torch.isfinite(near).all():
            return flat
        low, high = (float(v) for v in torch.aminmax(near))
        if low - float(beyond.amax()) <= max(MASK_GAP, high - low):
            return flat
        self.masked = True
        return near

    def _histogram(self, flat: torch.Tensor) -> torch.Tensor:
        """(BINS,) counts of ``flat``. Of a large tensor, the bulk is counted on an even selection, and the far ends
        (where a selection would miss a lone outlier, or count it manifold) on the extremes of small blocks."""
        step = max(flat.numel() // SAMPLE_LIMIT, 1)
        step += 1 - step % 2  # odd: must not fall in step with a row length that is a power of two
        thinned = flat[::step]
        counts = self._count(thinned)
        counts[BINS // 2] -= thinned.numel() - int(torch.count_nonzero(thinned))  # zero itself is exact
        counts.clamp_(min=0)
        if step == 1:
            return counts
        blocks = flat[: flat.numel() // step * step].view(-1, step)
        rest = flat[blocks.numel() :]
        highs, lows = torch.cat([blocks.amax(1), rest]), torch.cat([blocks.amin(1), rest])
        above = counts.flip(0).cumsum(0).flip(0) < FAR_END
        above[: BINS // 2] = False
        below = counts.cumsum(0) < FAR_END
        below[BINS // 2 :] = False
        counts *= flat.numel() / thinned.numel()
        return torch.where(above, self._count(highs), torch.where(below, self._count(lows), counts))

    def _count(self, values: torch.Tensor) -> torch.Tensor:
        return torch.histc(values, BINS, -self._bound, self._bound).cpu().double()

    def _widen(self, magnitude: float) -> None:
        """Makes the histogram reach ``magnitude``. Its bound is a power of two, so that bins merge exactly."""
        if magnitude <= self._bound:
            return
        bound = 2.0 ** math.ceil(math.log2(magnitude))
        if self._bound:
            merged = min(round(bound / self._bound), BINS // 2)
            kept = BINS // merged
            start = (BINS - kept) // 2
            counts = torch.zeros_like(self._counts)
            counts[:, start : start + kept] = self._counts.reshape(-1, kept, merged).sum(-1)
            self._counts = counts
        self._bound = bound

    # ---- expected error --------------------------------------------------------------------------------

    def _clipped(
        self, counts: torch.Tensor, centres: torch.Tensor, highs: torch.Tensor, f: Function | None
    ) -> torch.Tensor:
        """Expected squared error per sample of clipping at each of ``_FACTORS`` times the largest of ``highs``.

        Args:
            counts: (folds, bins).
            centres: (bins,), ascending.
            highs: (folds,), largest value of each fold.
            f: Function behind which the error counts, or None for the identity.
        """
        largest = float(highs.max())
        if largest <= 0:
            return torch.zeros_like(_FACTORS)
        cuts = _FACTORS * largest
        seen = _tail_error(counts.sum(0, keepdim=True), centres, cuts[None, :], f)[0]
        ordered = highs.clamp(min=0).sort(descending=True).values
        middle = max(1, len(ordered) // 2)
        excess = float(ordered[:middle].mean() - ordered[min(middle, len(ordered) - 1)])
        least = HEAD_ROOM * min(1.0, FEW_SAMPLES / self.samples)
        growth = 1 + _QUANTILES * max(excess / largest, least)  # (quantiles,)
        top = counts[int(highs.argmax())].expand(len(growth), -1)
        stretched = None if f is None else (lambda x: f(x * growth[:, None]))
        if stretched is None:
            unseen = _tail_error(top, centres, cuts[None, :] / growth[:, None], None) * growth[:, None] ** 2
        else:
            unseen = _tail_error(top, centres, cuts[None, :] / growth[:, None], stretched)
        return (seen + unseen.mean(0)) / (self.samples + 1)


def _tail_error(counts: torch.Tensor, centres: torch.Tensor, cuts: torch.Tensor, f: Function | None) -> torch.Tensor:
    """Sum of ``count * (f(x) - f(cut))**2`` over ``x > cut``.

    Args:
        counts: (rows, bins).
        centres: (bins,), ascending.
        cuts: (rows, n).
        f: Maps (rows, m) or (m,) to (rows, m); None is the identity.

    Returns:
        (rows, n)
    """
    values = (centres if f is None else _finite(f(centres))).expand_as(counts)
    at_cut = cuts if f is None else _finite(f(cuts))
    tails = [_suffix_sums(counts * values**p) for p in range(3)]
    first = torch.searchsorted(centres, cuts.contiguous(), right=True)
    n0, n1, n2 = (tail.gather(1, first) for tail in tails)
    return (n2 - 2 * at_cut * n1 + at_cut**2 * n0).clamp(min=0)


def _suffix_sums(x: torch.Tensor) -> torch.Tensor:
    """(rows, n) -> (rows, n + 1): sums of the last n, n - 1, ..., 0 entries."""
    sums = x.flip(1).cumsum(1).flip(1)
    return torch.cat([sums, torch.zeros(len(x), 1, dtype=x.dtype)], 1)


def _steepness(counts: torch.Tensor, centres: torch.Tensor, f: Function) -> float:
    """Sum of ``count * f'(x)**2``: by how much ``f`` passes on an error of rounding."""
    slopes = torch.gradient(_finite(f(centres)), spacing=(centres,))[0]
    return float((counts * slopes**2).sum())


def _mirror(f: Function) -> Function:
    return lambda x: f(-x)


def _finite(x: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)


class PerChannelWeightObserver(UniformQuantizationObserverBase):  # type: ignore[misc]
    """Observes a constant weight: symmetric, one scale for each index of ``ch_axis``, from the largest magnitude.

    A channel of zeros gets the scale of the largest channel, so that nothing downstream divides by nothing.

    Attributes:
        max_abs: (channels,), empty before the weight was seen.
        least: (channels,), smallest scale that the layer's bias allows, or empty.
    """

    def __init__(
        self,
        ch_axis: int = 0,
        dtype: torch.dtype = torch.int8,
        qscheme: torch.qscheme = torch.per_channel_symmetric,
        quant_min: int | None = None,
        quant_max: int | None = None,
        eps: float = 2.0**-40,
        is_dynamic: bool = False,
    ) -> None:
        super().__init__(
            dtype=dtype, qscheme=qscheme, quant_min=quant_min, quant_max=quant_max, eps=eps, is_dynamic=is_dynamic
        )
        self.ch_axis = ch_axis
        self.register_buffer("max_abs", torch.zeros(0))
        self.register_buffer("least", torch.zeros(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Notes ``x``, of any rank above ``ch_axis``, and returns it unchanged."""
        self.max_abs = x.detach().abs().movedim(self.ch_axis, 0).reshape(x.shape[self.ch_axis], -1).amax(1)
        return x

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Scales (float32) and zeros, each (channels,)."""
        largest = self.max_abs.max()
        if not float(largest) > 0:
            largest = torch.ones_like(largest)
        scale = (torch.where(self.max_abs > 0, self.max_abs, largest) / self.quant_max).float()
        if self.least.numel():
            scale = torch.maximum(scale, self.least)
        return scale, torch.zeros_like(scale, dtype=torch.int64)


class PerChannelFakeQuantize(FakeQuantize):  # type: ignore[misc]
    """torchao's fake-quantize under a name that makes PT2E pass the channel axis on: it looks for "PerChannel" in
    the class name and leaves every other class at axis 0, which is wrong for transposed convolutions. (The fused
    fake-quantize knows axis 0 only.)"""
