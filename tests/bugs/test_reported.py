"""Public bug reports about other compilers for this NPU: one row each, with the model that broke them.

The numbers are those of the project's list of reports. Every row compiles, gives the numbers of the quantized model,
and makes as many delegates as it should; what stays on the CPU stays there for a reason that the row knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import lowering
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import arm_lower
from arm_lower.edge.build import from_exported
from arm_lower.errors import ArmLowerError
from arm_lower.partition import EthosUPartitioner
from arm_lower.spec import EthosUCompileSpec

U55, U85 = lowering.TARGETS
MAP = (1, 4, 8, 8)


class Net(nn.Module):
    """A function of submodules and inputs."""

    def __init__(self, fn: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.fn = fn
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *args: torch.Tensor) -> Any:
        return self.fn(self, *args)


@dataclass(frozen=True)
class Report:
    """One report.

    Attributes:
        bug: Its number in the list, and the case.
        make: The model.
        shapes: Of its inputs.
        delegates: How many there must be; None if it does not matter.
        cpu: Operators that may stay on the CPU, without namespace and overload.
        lsb: Allowed difference from the quantized model, in steps of the output.
        only: Targets, by default both.
    """

    bug: str
    make: Callable[[], nn.Module]
    shapes: Sequence[tuple[int, ...]] = (MAP,)
    delegates: int | None = 1
    cpu: frozenset[str] = field(default=frozenset())
    lsb: float = 1.0
    scale: float = 1.0
    only: Sequence[str] = lowering.TARGETS


def fn(f: Callable[..., Any], **modules: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: Net(f, **{name: make() for name, make in modules.items()})


def conv(i: int = 4, o: int = 4, k: int = 3, **options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Conv2d(i, o, k, **{"padding": k // 2, **options})


def linear(i: int, o: int, **options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(i, o, **options)


class C2f(nn.Module):
    """B23: the blocks of a YOLO: split, bottleneck, cat of three, SPPF, upsampling, DFL head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = (
            nn.Conv2d(3, 16, 3, 2, 1),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.Conv2d(8, 8, 3, padding=1),
        )
        self.join, self.reduce, self.spread = nn.Conv2d(24, 16, 1), nn.Conv2d(16, 8, 1), nn.Conv2d(32, 16, 1)
        self.boxes, self.classes = nn.Conv2d(16, 64, 1), nn.Conv2d(16, 5, 1)
        self.register_buffer("bins", torch.arange(16.0).view(1, 16, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = F.silu(self.stem(x)).chunk(2, 1)
        deep = right + F.silu(self.b(F.silu(self.a(right))))
        x = F.silu(self.join(torch.cat([left, right, deep], 1)))
        pools = [F.silu(self.reduce(x))]
        for _ in range(3):
            pools.append(F.max_pool2d(pools[-1], 5, 1, 2))
        x = F.interpolate(F.silu(self.spread(torch.cat(pools, 1))), scale_factor=2.0, mode="nearest")
        n = x.shape[2] * x.shape[3]
        dfl = self.boxes(x).view(1, 4, 16, n).transpose(1, 2).softmax(1)
        boxes = F.conv2d(dfl, self.bins)
        return torch.cat([boxes.view(1, 4, n), self.classes(x).view(1, 5, n).sigmoid()], 1)


def trunk_to_heads(s: Any, x: torch.Tensor) -> torch.Tensor:
    """B18: channels last, rank 5, two axes changed."""
    y = F.relu(s.c(x)).permute(0, 2, 3, 1)
    return y.reshape(1, 1, 16, 8, 32).permute(0, 1, 3, 2, 4)


def windows(s: Any, x: torch.Tensor) -> torch.Tensor:
    """B107: window partition, something in the windows, and back."""
    y = s.c(x).permute(0, 2, 3, 1)
    y = y.view(1, 8, 4, 8, 4, 12).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, 12)
    y = F.relu(s.l(y))
    return y.view(1, 8, 8, 4, 4, 12).permute(0, 1, 3, 2, 4, 5).reshape(1, 32, 32, 12)


def grouped_attention(s: Any, x: torch.Tensor, causal: bool = False) -> torch.Tensor:
    q, k, v = (layer(x).view(1, 8, 2, 16).transpose(1, 2) for layer in (s.q, s.k, s.v))
    return s.o(F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).reshape(1, 8, 32))


def gru(s: Any, x: torch.Tensor) -> torch.Tensor:
    return s.head(s.gru(x)[0])


def scatter(start: int | None, end: int | None) -> Callable[..., torch.Tensor]:
    return lambda s, x, y: torch.slice_scatter(F.relu(x), F.relu(y), 1, start, end)


ANY = frozenset(
    {
        "matmul",
        "scaled_dot_product_attention",
        "_safe_softmax",
        "softmax",
        "mul",
        "add",
        "where",
        "full",
        "full_like",
        "tril",
        "ones",
        "logical_not",
        "masked_fill",
        "eq",
        "any",
        "_softmax",
        "bmm",
        "transpose",
        "view",
        "reshape",
        "permute",
        "contiguous",
        "clone",
        "expand",
        "unsqueeze",
        "logical_and",
        "scalar_tensor",
        "div",
        "einsum",
        "relu",
    }
)

REPORTS = [
    Report("B01", lambda: nn.ConvTranspose2d(3, 1, 5, stride=3, padding=2), [(1, 3, 4, 4)]),
    Report("B02", fn(lambda s, x: x.mean((1, 2), keepdim=True)), [(1, 256, 400)]),
    Report("B03", fn(lambda s, x: s.c(x[:, 1].reshape(1, 16, 4, 24)), c=conv(16, 8)), [(1, 6, 16, 4, 24)]),
    Report("B03 stacked", fn(lambda s, x: s.c(x.select(0, 1)), c=conv(64, 8, 1)), [(6, 1, 64, 4, 96)]),
    Report("B08", fn(lambda s, x: s.c(x).argmax(1), c=conv(8, 8)), [(1, 8, 16, 16)], cpu=frozenset({"argmax"})),
    Report("B11", fn(lambda s, x: s.c(F.pad(x, (1, 1, 1, 1))), c=conv(3, 4, padding=0)), [(1, 3, 10, 32)]),
    Report(
        "B12",
        fn(lambda s, x: s.b(F.interpolate(s.a(x), scale_factor=2, mode="bilinear")), a=conv(8, 8), b=conv(8, 8)),
        [(1, 8, 16, 16)],
        lsb=2.0,
    ),
    Report(
        "B13",
        fn(gru, gru=lambda: nn.GRU(32, 16, batch_first=True), head=linear(16, 8, bias=False)),
        [(1, 20, 32)],
        None,
        frozenset({"gru", "zeros"}),
        2.0,
    ),
    Report(
        "B14",
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d((3, 2))),
        [(4, 4, 9, 8)],
        1,
        frozenset({"adaptive_avg_pool2d"}),
    ),
    Report("B16", fn(lambda s, x: s.l(x).view(1, 197, 4, 16).permute(0, 2, 3, 1), l=linear(64, 64)), [(1, 197, 64)]),
    Report(
        "B16 block",
        fn(
            lambda s, x: s.b(s.l(s.a(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)),
            a=conv(4, 8),
            l=linear(8, 8),
            b=conv(8, 4),
        ),
        lsb=2.0,
    ),
    Report("B18", fn(trunk_to_heads, c=conv(3, 32, stride=2)), [(1, 3, 16, 32)]),
    Report(
        "B19 relu_", fn(lambda s, x: F.relu_(s.c(x)), c=lambda: nn.Conv2d(3, 64, 7, 2, 3, bias=False)), [(1, 3, 32, 32)]
    ),
    Report(
        "B19 leaky_relu_",
        fn(lambda s, x: F.leaky_relu_(s.c(x)), c=lambda: nn.Conv2d(3, 64, 7, 2, 3, bias=False)),
        [(1, 3, 32, 32)],
    ),
    Report(
        "B19 hardtanh_",
        fn(lambda s, x: F.hardtanh_(s.c(x), 0.0, 0.5), c=lambda: nn.Conv2d(3, 64, 7, 2, 3, bias=False)),
        [(1, 3, 32, 32)],
    ),
    Report("B23", C2f, [(1, 3, 32, 32)], lsb=4.0),
    Report(
        "B29",
        lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)),
        [(3, 8)],
        None,
        frozenset({"layer_norm"}),
        2.0,
    ),
    Report(
        "B29 plain",
        lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8, eps=1e-3, elementwise_affine=False)),
        [(3, 8)],
        1,
        frozenset({"layer_norm"}),
    ),
    Report("B29 sum", fn(lambda s, x: s.c(x).sum(1, dtype=torch.float32), c=conv())),
    Report(
        "B31",
        fn(
            lambda s, x: grouped_attention(s, x, True),
            q=linear(32, 32),
            k=linear(32, 32),
            v=linear(32, 32),
            o=linear(32, 32),
        ),
        [(1, 8, 32)],
        None,
        ANY,
        3.0,
    ),
    Report(
        "B32",
        fn(grouped_attention, q=linear(32, 32), k=linear(32, 32), v=linear(32, 32), o=linear(32, 32)),
        [(1, 8, 32)],
        None,
        ANY,
        3.0,
    ),
    *(
        Report(f"B33 {name}", fn(scatter(*ends)), [(5, 9), (5, 5)], None, frozenset({"slice_scatter", "relu"}))
        for name, ends in {"start": (0, 5), "end": (4, 9), "negative": (-5, None), "overlong": (4, 100)}.items()
    ),
    Report("B34", fn(lambda s, x: F.relu(x).mean()), [(1, 5, 7, 3)]),
    Report("B34 keepdim", fn(lambda s, x: torch.mean(F.relu(x), dim=None, keepdim=True)), [(1, 5, 7, 3)]),
    Report(
        "B36",
        fn(lambda s, x, y: torch.einsum("bhid,bhjd->bhij", F.relu(x), y)),
        [(1, 2, 8, 4), (1, 2, 8, 4)],
        None,
        ANY,
    ),
    Report(
        "B41",
        fn(lambda s, x: s.l(x).view(1, 16, 4, 8).permute(0, 2, 1, 3).cumsum(-1), l=linear(32, 32)),
        [(1, 16, 32)],
        1,
        frozenset({"cumsum"}),
    ),
    Report("B46", fn(lambda s, x: (lambda y: F.relu(y) + (y + x))(s.c(x)), c=conv()), lsb=3.0),
    Report(
        "B46 depthwise",
        fn(lambda s, x: (lambda y: (F.relu(y), y + x, y.permute(0, 2, 3, 1)))(s.c(x)), c=conv(groups=4)),
    ),
    Report(
        "B46 transposed",
        fn(lambda s, x: (lambda y: (F.relu(y), y * 0.5))(s.c(x)), c=lambda: nn.ConvTranspose2d(4, 4, 2, 2)),
        lsb=2.0,
    ),
    Report("B47", lambda: Constants(), lsb=2.0),
    Report(
        "B48",
        fn(lambda s, x: torch.cat([x, F.hardtanh(s.c(x), 0.0, 6.0)], 3), c=lambda: nn.Conv2d(2, 2, 1, bias=False)),
        [(1, 2, 1, 1)],
    ),
    Report(
        "B48 channels",
        fn(lambda s, x: torch.cat([9 * x, F.hardtanh(s.c(x), 0.0, 6.0)], 1), c=lambda: nn.Conv2d(2, 2, 1, bias=False)),
        [(1, 2, 4, 4)],
        lsb=2.0,
    ),
    Report("B51", lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), [(2, 3, 8)], lsb=2.0),
    Report(
        "B51 reshape",
        fn(lambda s, x: s.b(s.a(x).reshape(3, 16)), a=linear(8, 8), b=linear(16, 4)),
        [(2, 3, 8)],
        lsb=2.0,
    ),
    Report("B52", lambda: nn.Sequential(nn.Conv2d(8, 8, 1), nn.AvgPool2d(7)), [(1, 8, 7, 7)], lsb=2.0),
    Report("B53", lambda: nn.AvgPool2d(3), [(1, 3, 8, 8)]),
    Report("B53 two sizes", lambda: nn.AvgPool2d([2, 3]), [(1, 3, 8, 8)]),
    Report("B54", lambda: nn.MaxPool2d(3, 1, dilation=2), [(1, 1, 7, 6)]),
    Report("B54 stride", lambda: nn.MaxPool2d(3, (3, 1), dilation=(1, 2)), [(1, 8, 29, 30)]),
    Report("B54 padded", lambda: nn.MaxPool2d(3, 2, 1, dilation=3), [(1, 8, 32, 32)]),
    Report("B61", fn(lambda s, x: (lambda y: (y.clamp(-0.3, 0.7), y))(s.c(x)), c=conv())),
    Report("B63", fn(lambda s, x: F.softmax(x, -1)), [(3, 4)], lsb=1.5),
    Report("B64", fn(lambda s, x: s.c(F.pad(x, (1, 2, 0, 1))), c=conv(3, 4)), [(1, 3, 5, 5)]),
    Report(
        "B68",
        lambda: nn.Sequential(nn.Conv2d(16, 16, 1), nn.GroupNorm(4, 16)),
        [(1, 16, 8, 8)],
        1,
        frozenset({"group_norm"}),
        2.0,
    ),
    Report("B101", linear(512, 512), [(1, 512)]),
    Report("B103", fn(lambda s, x: x.mean(1)), [(1, 16)]),
    Report("B106 same input twice", fn(lambda s, x: x * x)),
    Report("B106 activations in a row", fn(lambda s, x: F.relu(F.relu6(s.c(x))), c=conv())),
    Report("B106 split then add", fn(lambda s, x: (lambda a, b: a + b)(*x.split(2, 1)))),
    Report(
        "B106 reshapes then conv",
        fn(lambda s, x: s.c(x.reshape(1, 16, 4, 4).reshape(1, 8, 8, 4).reshape(MAP)), c=conv()),
    ),
    Report("B106 leaky_relu of negative slope", fn(lambda s, x: F.leaky_relu(x, -0.1))),
    Report("B106 leaky_relu of steep slope", fn(lambda s, x: F.leaky_relu(x, 1.7))),
    Report("B106 mean of a batch", fn(lambda s, x: x.mean((2, 3))), [(2, 4, 6, 6)]),
    Report("B106 the same table twice", fn(lambda s, x: torch.sigmoid(x) + torch.sigmoid(s.c(x)), c=conv()), lsb=3.0),
    Report("B106 grouped", conv(8, 8, groups=2), [(1, 8, 6, 6)]),
    Report("B107", fn(windows, c=conv(3, 12), l=linear(12, 12)), [(1, 3, 32, 32)], lsb=2.0),
    Report("B108 minuend", fn(lambda s, x: 3.0 - x)),
    Report("B108 dividend", fn(lambda s, x: 2 / (x + 4)), lsb=2.0, scale=0.3),
    Report("B108 divisor", fn(lambda s, x: F.relu(x) / 3)),
    Report("B116 small", lambda: nn.Sequential(nn.Conv2d(12, 12, 1), nn.PixelShuffle(2)), [(1, 12, 64, 64)]),
    Report("B118 image of more than 65536 pixels", conv(3, 2, stride=2), [(1, 3, 258, 256)]),
    Report("B118 its output too", conv(3, 2, 1), [(1, 3, 257, 256)]),
    Report(
        "B118 three axes", fn(lambda s, x: s.c(x).permute(0, 3, 1, 2), c=conv(2, 2, 1)), [(1, 2, 3, 70000)], only=[U55]
    ),
    Report("B119 mean", fn(lambda s, x: x.mean((2, 3))), [(1, 6, 14, 16)], scale=2.0),
    Report(
        "B119 resize", fn(lambda s, x: F.interpolate(s.c(x), size=(13, 13), mode="bilinear"), c=conv()), [(1, 4, 5, 5)]
    ),
    Report("B119 sum", fn(lambda s, x: s.c(x).sum((1, 2)), c=conv(16, 64)), [(1, 16, 9, 9)]),
    Report("B119 softmax of many", fn(lambda s, x: F.softmax(x, -1)), [(1, 1000)], lsb=1.5, scale=3.0),
]


class Constants(nn.Module):
    """B47: constants of different ranges, concatenated and added."""

    def __init__(self) -> None:
        super().__init__()
        for i, size in enumerate((0.1, 1.0, 30.0)):
            self.register_buffer(f"k{i}", torch.linspace(-size, size, 12).view(1, 3, 2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x.repeat(1, 1, 1, 1)[:, :1, :2, :2] + torch.cat([self.k0, self.k1, self.k2], 1))


CASES = [(r, target) for r in REPORTS for target in r.only]


@pytest.mark.parametrize("report,target", CASES, ids=[f"{r.bug}-{t.split('-')[1]}" for r, t in CASES])
def test_reported(report: Report, target: str) -> None:
    torch.manual_seed(0)
    calibration = lowering.samples(*report.shapes, scale=report.scale)
    q = lowering.quantized(report.make(), calibration)
    program = lowering.lowered(q, calibration[0], target)
    left = {op.op.split(".")[1] for op in program.cpu_ops}
    assert left <= report.cpu, [
        f"{op.op}: {op.reason}" for op in program.cpu_ops if op.op.split(".")[1] not in report.cpu
    ]
    assert all(op.reason for op in program.cpu_ops)
    if report.delegates is not None:
        assert len(program.delegates) == report.delegates
    for sample in calibration[:2]:
        with torch.no_grad():
            wanted = torch.utils._pytree.tree_leaves(q(*sample))
        for found, want, step in zip(lowering.execute(program, *sample), wanted, lowering.output_steps(q), strict=True):
            assert found.shape == want.shape and found.dtype == want.dtype
            difference = float((found - want).abs().max())
            assert difference <= report.lsb * step * 1.001 + 1e-5, f"{difference / (step or 1):.2f} LSB"


# -- reports that need more than a row ---------------------------------------------------------------------------


def program_of(
    module: nn.Module, *shapes: tuple[int, ...], target: str = U55
) -> tuple[Any, Any, list[tuple[Any, ...]]]:
    torch.manual_seed(0)
    calibration = lowering.samples(*(shapes or (MAP,)))
    q = lowering.quantized(module, calibration)
    return q, lowering.lowered(q, calibration[0], target), calibration


def unquantized(module: nn.Module, *inputs: torch.Tensor, target: str = U55) -> Any:
    exported = torch.export.export(module.eval(), inputs)
    program = EthosUPartitioner(EthosUCompileSpec(target, effort="fast")).lower(from_exported(exported))
    with torch.no_grad():
        wanted = torch.utils._pytree.tree_leaves(module(*inputs))
    for found, want in zip(lowering.execute(program, *inputs), wanted, strict=True):
        assert found.dtype == want.dtype and torch.equal(found, want)
    return program


@pytest.mark.parametrize("target", lowering.TARGETS)
def test_b08_argmax_that_is_returned_keeps_its_type(target: str) -> None:
    _, program, calibration = program_of(
        Net(lambda s, x: s.c(x).argmax(1), c=nn.Conv2d(8, 8, 3)), (1, 8, 16, 16), target=target
    )
    (found,) = lowering.execute(program, *calibration[0])
    assert found.dtype == torch.int64


@pytest.mark.parametrize("target", lowering.TARGETS)
def test_b09_extrema_of_int32(target: str) -> None:
    """Exact, wherever they run, and a reason if not on the NPU."""
    x = torch.randint(-(2**31), 2**31 - 1, (4, 8), dtype=torch.int32)
    program = unquantized(Net(lambda s, x: (x.amax(-1), x.amin(-1))), x, target=target)
    assert all(op.reason for op in program.cpu_ops)


def test_b11_dynamic_shapes_are_refused_at_once() -> None:
    module = nn.Sequential(nn.ZeroPad2d(1), nn.Conv2d(3, 4, 3)).eval()
    exported = torch.export.export(module, (torch.randn(1, 3, 16, 32),), dynamic_shapes=({2: torch.export.Dim.AUTO},))
    with pytest.raises(ArmLowerError, match="size of dimension 2 is dynamic"):
        from_exported(exported)


def test_b14_the_kernels_that_a_file_needs_are_listed() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d((3, 2))).eval()
    compiled = arm_lower.compile(module, lowering.samples((4, 4, 9, 8)), U55, effort="fast")
    operators = [op.name if hasattr(op, "name") else op for op in compiled.program.kernels]
    assert any("adaptive_avg_pool2d" in str(op) for op in operators)
    assert set(compiled.program.libraries) == set(compiled.program.kernels) and all(compiled.program.libraries.values())
    assert compiled.verify(lowering.samples((4, 4, 9, 8))[:1]).exact


def test_b28_parameters_that_require_gradients() -> None:
    module = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU())
    assert all(p.requires_grad for p in module.parameters())
    q, program, calibration = program_of(module)
    assert len(program.delegates) == 1 and not program.cpu_ops
    assert not any(t.requires_grad for t in lowering.execute(program, *calibration[0]))


@pytest.mark.parametrize("target", lowering.TARGETS)
def test_b32_attention_with_a_row_that_is_masked_fully(target: str) -> None:
    mask = torch.ones(8, 8, dtype=torch.bool).tril()
    mask[0] = False

    def attention(s: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(s.l(q), k, v, attn_mask=s.mask)

    module = Net(attention, l=nn.Linear(16, 16))
    module.register_buffer("mask", mask)
    q, program, calibration = program_of(module, *[(1, 2, 8, 16)] * 3, target=target)
    with torch.no_grad():
        want = q(*calibration[0])
    (found,) = lowering.execute(program, *calibration[0])
    assert torch.isfinite(found).all()
    assert float((found - want).abs().max()) <= 3.001 * (lowering.output_steps(q)[0] or 1e-6)


def test_b58_equal_numbers_of_other_types() -> None:
    class Ones(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Conv2d(4, 4, 1)
            self.register_buffer("one", torch.ones(1))
            self.register_buffer("integer", torch.ones(1, dtype=torch.int32))

        def forward(self, x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.a(x) + self.one, i + self.integer

    torch.manual_seed(0)
    calibration = [(x[0], torch.arange(4, dtype=torch.int32)) for x in lowering.samples(MAP)]
    q = lowering.quantized(Ones(), calibration)
    program = lowering.lowered(q, calibration[0])
    real, integer = lowering.execute(program, *calibration[0])
    assert integer.dtype == torch.int32 and integer.tolist() == [1, 2, 3, 4]
    assert float((real - q(*calibration[0])[0]).abs().max()) <= 1.001 * lowering.output_steps(q)[0]


def test_b68_not_equal() -> None:
    x = torch.randint(-3, 3, (4, 9), dtype=torch.int8)
    for target in lowering.TARGETS:
        unquantized(Net(lambda s, a, b: a != b), x, x.flip(0), target=target)


def test_b69_weights_have_a_scale_for_each_channel() -> None:
    q, _, _ = program_of(nn.Sequential(nn.Conv2d(4, 6, 3)))
    weights = [n for n in q.graph.nodes if "dequantize_per_channel" in str(n.target)]
    assert [len(getattr(q, n.args[1].target)) for n in weights] == [6, 6]


@pytest.mark.parametrize("target", lowering.TARGETS)
def test_b102_both_memory_formats(target: str) -> None:
    """The same delegate and numbers in both, and no transpose in channels-last."""

    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(4, 8, 3, 2, 1),
            nn.ReLU6(),
            nn.Conv2d(8, 8, 3, groups=8),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 5),
        ).eval()

    calibration = lowering.samples((1, 4, 12, 12))
    both = [
        arm_lower.compile(network(), calibration, target, io_layout=layout, effort="fast")
        for layout in ("contiguous", "channels_last")
    ]
    assert [len(c.delegates) for c in both] == [1, 1] and not any(c.report.cpu_ops for c in both)
    a, b = (c.verify(calibration) for c in both)
    assert a.exact and b.exact and all((x[0] == y[0]).all() for x, y in zip(a.results, b.results))
    assert not any(op.kind == "TRANSPOSE" for op in both[1].delegates[0].tosa.ops)
    assert both[1].report.total_cycles <= both[0].report.total_cycles


@pytest.mark.parametrize("target", lowering.TARGETS)
def test_b109_indices_are_not_quantized(target: str) -> None:
    torch.manual_seed(0)
    module = Net(lambda s, i: s.l(s.e(i)), e=nn.Embedding(32, 16), l=nn.Linear(16, 4))
    calibration = [(torch.randint(0, 32, (1, 6), dtype=torch.int32),) for _ in range(4)]
    q = lowering.quantized(module, calibration)
    program = lowering.lowered(q, calibration[0], target)
    assert {op.op.split(".")[1] for op in program.cpu_ops} <= {"embedding"} and len(program.delegates) == 1
    (found,) = lowering.execute(program, *calibration[0])
    assert float((found - q(*calibration[0])).abs().max()) <= 1.001 * lowering.output_steps(q)[0]


@pytest.mark.parametrize("target", lowering.TARGETS)
def test_b116_large_pixel_shuffle(target: str) -> None:
    """Either on the NPU or with a reason that names a limit."""
    _, program, _ = program_of(
        nn.Sequential(nn.Conv2d(12, 12, 1), nn.PixelShuffle(2)), (1, 12, 270, 480), target=target
    )
    assert len(program.delegates) == 1
    assert all("pixel_shuffle" in op.op and any(c.isdigit() for c in op.reason) for op in program.cpu_ops)


@pytest.mark.parametrize("target", lowering.TARGETS)
def test_b118_permute_of_int32(target: str) -> None:
    x = torch.randint(-(2**31), 2**31 - 1, (1, 4, 8, 6), dtype=torch.int32)
    for order in ((0, 2, 3, 1), (0, 3, 1, 2), (0, 1, 3, 2), (0, 2, 1, 3), (0, 3, 2, 1)):
        unquantized(Net(lambda s, x, order=order: x.permute(order) + x.permute(order)), x // 4, target=target)
