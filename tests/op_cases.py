"""One small function for each operator that a program may leave on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.ao.quantization.fx._decomposed  # defines torch.ops.quantized_decomposed
import torch.nn.functional as F
from torch import Tensor, nn


class Case(NamedTuple):
    """A function of tensors and its inputs."""

    function: Callable[..., Any]
    inputs: tuple[Any, ...]


class Module(nn.Module):
    """A function as a module that can be exported."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        if isinstance(function, nn.Module):
            self.inner = function
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def _x(*shape: int, seed: int = 0, low: float = -3.0, high: float = 3.0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * (high - low) + low


def _i(*shape: int, seed: int = 0, low: int = -9, high: int = 10, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _b(*shape: int, seed: int = 0) -> Tensor:
    return _x(*shape, seed=seed) > 0


def _unary() -> dict[str, Case]:
    x, pos, unit, big = _x(3, 5), _x(3, 5, low=0.1), _x(3, 5, low=-0.9, high=0.9), _x(3, 5, low=1.1)
    table: dict[str, tuple[Callable[..., Any], Tensor]] = {
        "abs": (torch.abs, x),
        "acos": (torch.acos, unit),
        "acosh": (torch.acosh, big),
        "asin": (torch.asin, unit),
        "asinh": (torch.asinh, x),
        "atan": (torch.atan, x),
        "atanh": (torch.atanh, unit),
        "ceil": (torch.ceil, x),
        "cos": (torch.cos, x),
        "cosh": (torch.cosh, x),
        "erf": (torch.erf, x),
        "erfc": (torch.erfc, x),
        "exp": (torch.exp, x),
        "exp2": (torch.exp2, x),
        "expm1": (torch.expm1, x),
        "floor": (torch.floor, x),
        "frac": (torch.frac, x),
        "log": (torch.log, pos),
        "log10": (torch.log10, pos),
        "log1p": (torch.log1p, pos),
        "log2": (torch.log2, pos),
        "logit": (torch.logit, _x(3, 5, low=0.05, high=0.95)),
        "neg": (torch.neg, x),
        "reciprocal": (torch.reciprocal, pos),
        "round": (torch.round, x),
        "rsqrt": (torch.rsqrt, pos),
        "round_decimals": (lambda x: torch.round(x, decimals=2), x),
        "sigmoid": (torch.sigmoid, x),
        "sign": (torch.sign, x),
        "sgn": (torch.sgn, x),
        "sin": (torch.sin, x),
        "sinh": (torch.sinh, x),
        "sqrt": (torch.sqrt, pos),
        "square": (torch.square, x),
        "tan": (torch.tan, unit),
        "tanh": (torch.tanh, x),
        "trunc": (torch.trunc, x),
        "relu": (torch.relu, x),
        "relu6": (F.relu6, x * 3),
        "hardswish": (F.hardswish, x * 2),
        "hardsigmoid": (F.hardsigmoid, x * 2),
        "hardtanh": (F.hardtanh, x),
        "silu": (F.silu, x),
        "gelu": (F.gelu, x),
        "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), x),
        "elu": (F.elu, x),
        "celu": (lambda x: F.celu(x, 0.7), x),
        "selu": (F.selu, x),
        "leaky_relu": (lambda x: F.leaky_relu(x, 0.2), x),
        "mish": (F.mish, x),
        "softplus": (F.softplus, x),
        "softplus_beta": (lambda x: F.softplus(x, 2, 1), x),
        "softsign": (F.softsign, x),
        "logsigmoid": (F.logsigmoid, x),
        "hardshrink": (F.hardshrink, x),
        "softshrink": (F.softshrink, x),
        "tanhshrink": (F.tanhshrink, x),
        "threshold": (lambda x: F.threshold(x, 0.5, -1.0), x),
        "glu": (F.glu, _x(3, 6)),
        "isnan": (torch.isnan, x),
        "isinf": (torch.isinf, x),
        "isfinite": (torch.isfinite, x / _i(3, 5).clamp(0, 1)),
        "nan_to_num": (torch.nan_to_num, x / _i(3, 5).clamp(0, 1)),
        "clamp": (lambda x: x.clamp(-1, 1.5), x),
        "clamp_min": (lambda x: x.clamp_min(0.5), x),
        "clamp_max": (lambda x: x.clamp(max=0.5), x),
        "pow2": (lambda x: x**2, x),
        "pow3": (lambda x: x**3, x),
        "pow_half": (lambda x: x**0.5, pos),
        "scalar_pow": (lambda x: 2.0**x, x),
        "rsub": (lambda x: 1.0 - x, x),
        "div_scalar": (lambda x: x / 3, x),
        "floordiv": (lambda x: x // 2, x),
        "mod": (lambda x: x % 2, x),
        "fmod": (lambda x: torch.fmod(x, 2), x),
        "remainder_int": (lambda x: x % 3, _i(3, 5)),
        "add_scalar": (lambda x: x + 1, x),
        "mul_scalar": (lambda x: 3 * x, x),
        "int_plus_float": (lambda x: x + 1.5, _i(3, 5)),
        "int_div": (lambda x: x / 4, _i(3, 5)),
        "int_neg": (torch.neg, _i(3, 5)),
        "int_abs": (torch.abs, _i(3, 5)),
        "logical_not": (torch.logical_not, _b(3, 5)),
        "bitwise_not": (torch.bitwise_not, _i(3, 5)),
        "deg2rad": (torch.deg2rad, x),
        "sinc": (torch.sinc, x),
        "exp_int": (torch.exp, _i(3, 5)),
        "sigmoid_int": (torch.sigmoid, _i(3, 5)),
    }
    return {name: Case(function, (x,)) for name, (function, x) in table.items()}


def _binary() -> dict[str, Case]:
    a, b, row = _x(2, 3, 4), _x(2, 3, 4, seed=1, low=0.2), _x(4, seed=2, low=0.2)
    i, j = _i(2, 3, 4), _i(2, 3, 4, seed=1, low=1)
    p, q = _b(2, 3, 4), _b(2, 3, 4, seed=1)
    return {
        "add": Case(torch.add, (a, b)),
        "add_alpha": Case(lambda x, y: torch.add(x, y, alpha=2), (a, row)),
        "sub": Case(torch.sub, (a, row)),
        "sub_alpha": Case(lambda x, y: torch.sub(x, y, alpha=0.5), (a, b)),
        "mul": Case(torch.mul, (a, row)),
        "div": Case(torch.div, (a, b)),
        "div_floor": Case(lambda x, y: torch.div(x, y, rounding_mode="floor"), (a, b)),
        "div_trunc": Case(lambda x, y: torch.div(x, y, rounding_mode="trunc"), (a, b)),
        "floor_divide": Case(torch.floor_divide, (i, j)),
        "fmod": Case(torch.fmod, (a, b)),
        "remainder": Case(torch.remainder, (a, b)),
        "maximum": Case(torch.maximum, (a, row)),
        "minimum": Case(torch.minimum, (a, b)),
        "pow": Case(torch.pow, (b, a)),
        "atan2": Case(torch.atan2, (a, b)),
        "hypot": Case(torch.hypot, (a, b)),
        "eq": Case(torch.eq, (i, j)),
        "ne": Case(torch.ne, (i, j)),
        "lt": Case(torch.lt, (a, b)),
        "le": Case(torch.le, (i, j)),
        "gt": Case(torch.gt, (a, row)),
        "ge": Case(torch.ge, (a, b)),
        "gt_scalar": Case(lambda x: x > 0.5, (a,)),
        "eq_scalar": Case(lambda x: x == 2, (i,)),
        "logical_and": Case(torch.logical_and, (p, q)),
        "logical_or": Case(torch.logical_or, (p, q)),
        "logical_xor": Case(torch.logical_xor, (p, q)),
        "bitwise_and": Case(torch.bitwise_and, (i, j)),
        "bitwise_or": Case(torch.bitwise_or, (p, q)),
        "bitwise_xor": Case(torch.bitwise_xor, (i, j)),
        "shift_left": Case(lambda x: x << 2, (i,)),
        "shift_right": Case(lambda x: x >> 1, (i,)),
        "where": Case(torch.where, (p, a, b)),
        "where_scalar": Case(lambda c, x: torch.where(c, x, 0.25), (p, a)),
        "masked_fill": Case(lambda x, m: x.masked_fill(m, -1e4), (a, p)),
        "lerp": Case(lambda x, y: torch.lerp(x, y, 0.3), (a, b)),
        "addcmul": Case(lambda x, y: torch.addcmul(x, y, y, value=0.5), (a, b)),
        "addcdiv": Case(lambda x, y: torch.addcdiv(x, x, y, value=0.5), (a, b)),
        "int_add_float": Case(torch.add, (i, a)),
        "int_mul": Case(torch.mul, (i, j)),
        "bool_add": Case(torch.add, (p, i)),
        "logaddexp": Case(torch.logaddexp, (a, b)),
        "prelu": Case(F.prelu, (_x(2, 3, 4), _x(3))),
        "prelu_one": Case(F.prelu, (_x(2, 3, 4), _x(1))),
        "rms_norm": Case(lambda x, w: F.rms_norm(x, (4,), w), (a, row)),
        "clamp_tensor": Case(lambda x, y: torch.clamp(x, min=-y, max=y), (a, b)),
        "heaviside": Case(torch.heaviside, (a, b)),
        "copysign": Case(torch.copysign, (b, a)),
        "xlogy": Case(torch.xlogy, (a, b)),
        "one_minus_int": Case(lambda x: 1 - x, (i,)),
        "float64": Case(torch.add, (a.double(), b.double())),
    }


def _reduce() -> dict[str, Case]:
    x, i, p = _x(2, 3, 4, 5), _i(2, 3, 4), _b(2, 3, 4)
    calls: dict[str, tuple[Callable[..., Any], Tensor]] = {
        "sum": (torch.sum, x),
        "sum_dims": (lambda x: x.sum((1, 3), keepdim=True), x),
        "sum_int": (torch.sum, i),
        "mean": (torch.mean, x),
        "mean_dim": (lambda x: x.mean(-1), x),
        "mean_dims": (lambda x: x.mean((2, 3), True), x),
        "amax": (lambda x: x.amax((1, 2)), x),
        "amin": (lambda x: x.amin(-1, keepdim=True), x),
        "amax_all": (torch.amax, x),
        "max": (torch.max, x),
        "min": (torch.min, i),
        "max_dim": (lambda x: torch.max(x, 1), x),
        "min_dim": (lambda x: torch.min(x, -1, keepdim=True), x),
        "argmax": (lambda x: x.argmax(1), x),
        "argmin": (lambda x: x.argmin(-1, keepdim=True), x),
        "argmax_all": (torch.argmax, x),
        "prod": (torch.prod, x),
        "prod_dim": (lambda x: x.prod(2), x),
        "any": (torch.any, p),
        "any_dim": (lambda x: x.any(1), p),
        "all": (torch.all, p),
        "all_dim": (lambda x: x.all(-1), p),
        "all_dims": (lambda x: torch.all(x, (0, 1)), p),
        "var": (lambda x: x.var((2, 3)), x),
        "var_biased": (lambda x: x.var(1, unbiased=False, keepdim=True), x),
        "std": (lambda x: x.std(-1), x),
        "std_all": (torch.std, x),
        "var_mean": (lambda x: torch.var_mean(x, (1, 2)), x),
        "norm": (torch.linalg.vector_norm, x),
        "norm1": (lambda x: torch.linalg.vector_norm(x, 1, dim=1), x),
        "norm_inf": (lambda x: torch.linalg.vector_norm(x, math.inf, dim=(1, 2)), x),
        "normalize": (F.normalize, x),
        "logsumexp": (lambda x: torch.logsumexp(x, 1), x),
        "cumsum": (lambda x: x.cumsum(1), x),
        "cumprod": (lambda x: x.cumprod(1), _x(2, 3)),
        "softmax": (lambda x: x.softmax(-1), x),
        "softmax_1": (lambda x: x.softmax(1), x),
        "log_softmax": (lambda x: x.log_softmax(1), x),
        "softmin": (lambda x: F.softmin(x, 1), x),
        "softmax_double": (lambda x: F.softmax(x, 1, dtype=torch.float64), x),
        "topk": (lambda x: torch.topk(x, 2, 2), x),
        "sort": (lambda x: torch.sort(x, -1)[0], x),
        "sort_descending": (lambda x: torch.sort(x, 1, descending=True), x),
        "argsort": (lambda x: torch.argsort(x, 1), x),
        "median": (lambda x: torch.median(x, 1)[0], x),
        "count_nonzero": (lambda x: torch.count_nonzero(x, 1), i),
        "cosine": (lambda x: F.cosine_similarity(x, x.flip(1), 1), x),
        "trace": (torch.trace, _x(4, 4)),
        "cdist": (lambda x: torch.cdist(x, x + 0.5), _x(2, 3, 4)),
        "dist": (lambda x: torch.dist(x, x * 2), x),
    }
    return {f"reduce_{name}": Case(function, (x,)) for name, (function, x) in calls.items()}


def _shapes() -> dict[str, Case]:
    x, y = _x(2, 3, 4, 5), _x(2, 3, 4, 5, seed=1)
    index = torch.tensor([2, 0, 1])
    calls: dict[str, tuple[Any, ...]] = {
        "view": (lambda x: x.view(6, -1), x),
        "reshape": (lambda x: x.permute(0, 2, 1, 3).reshape(2, 4, -1), x),
        "flatten": (torch.flatten, x),
        "flatten_1": (lambda x: x.flatten(1), x),
        "unflatten": (lambda x: x.unflatten(3, (5, 1)), x),
        "permute": (lambda x: x.permute(0, 2, 3, 1), x),
        "transpose": (lambda x: x.transpose(1, 3), x),
        "t": (torch.t, _x(3, 4)),
        "mT": (lambda x: x.mT, x),
        "movedim": (lambda x: torch.movedim(x, 1, 3), x),
        "squeeze": (lambda x: x.unsqueeze(1).squeeze(1), x),
        "squeeze_all": (torch.squeeze, _x(1, 3, 1, 4)),
        "squeeze_noop": (lambda x: x.squeeze(1) + 0, x),
        "unsqueeze": (lambda x: x.unsqueeze(-1), x),
        "expand": (lambda x: x.expand(4, 3, 5), _x(1, 3, 1)),
        "expand_new": (lambda x: x.expand(2, 3, 4), _x(3, 1)),
        "repeat": (lambda x: x.repeat(1, 2, 1, 3), x),
        "tile": (lambda x: torch.tile(x, (2,)), x),
        "repeat_interleave": (lambda x: x.repeat_interleave(2, 1), x),
        "cat": (lambda x, y: torch.cat([x, y], 1), x, y),
        "cat_last": (lambda x, y: torch.cat([x, y, x], -1), x, y),
        "stack": (lambda x, y: torch.stack([x, y], 2), x, y),
        "split": (lambda x: torch.split(x, 2, 2), x),
        "split_sizes": (lambda x: torch.split(x, [1, 3, 1], 3), x),
        "chunk": (lambda x: torch.chunk(x, 3, 1), x),
        "unbind": (lambda x: torch.unbind(x, 1), x),
        "select": (lambda x: x[:, 1], x),
        "slice": (lambda x: x[:, :, 1:3], x),
        "slice_step": (lambda x: x[..., ::2], x),
        "slice_negative": (lambda x: x[..., -3:-1], x),
        "narrow": (lambda x: x.narrow(3, 1, 3), x),
        "flip": (lambda x: x.flip(1, 3), x),
        "roll": (lambda x: torch.roll(x, (1, -2), (1, 3)), x),
        "rot90": (lambda x: torch.rot90(x, 1, (2, 3)), x),
        "index_select": (lambda x, i: x.index_select(1, i), x, index),
        "index": (lambda x, i: x[:, i], x, index),
        "index_two": (lambda x, i: x[:, i, i], x, index),
        "gather": (lambda x, i: torch.gather(x, 1, i), _x(2, 3), torch.tensor([[0, 2], [1, 1]])),
        "gather_int32": (
            lambda x, i: torch.gather(x, 1, i),
            _x(2, 3),
            torch.tensor([[0, 2], [1, 1]], dtype=torch.int32),
        ),
        "scatter": (lambda x, i: x.scatter(1, i, 5.0), _x(2, 3), torch.tensor([[0], [2]])),
        "scatter_src": (lambda x, i, s: x.scatter(1, i, s), _x(2, 3), torch.tensor([[0], [2]]), _x(2, 1, seed=1)),
        "scatter_add": (lambda x, i, s: x.scatter_add(1, i, s), _x(2, 3), torch.tensor([[0], [2]]), _x(2, 1, seed=1)),
        "index_put": (lambda x, i, s: x.index_put((i,), s), _x(3, 4), torch.tensor([2, 0]), _x(2, 4, seed=1)),
        "index_add": (lambda x, i, s: x.index_add(0, i, s), _x(3, 4), torch.tensor([2, 0]), _x(2, 4, seed=1)),
        "select_scatter": (lambda x, s: x.select_scatter(s, 1, 2), x, _x(2, 4, 5, seed=1)),
        "slice_scatter": (lambda x, s: x.slice_scatter(s, 2, 1, 3), x, _x(2, 3, 2, 5, seed=1)),
        "masked_scatter": (lambda x, m, s: x.masked_scatter(m, s), _x(2, 3), _b(2, 3), _x(2, 3, seed=1)),
        "tril": (torch.tril, _x(4, 4)),
        "triu": (lambda x: torch.triu(x, 1), _x(4, 5)),
        "diagonal": (torch.diagonal, _x(4, 5)),
        "diag_embed": (torch.diag_embed, _x(2, 3)),
        "unfold": (lambda x: x.unfold(3, 3, 1), x),
        "im2col": (lambda x: F.unfold(x, 2, padding=1), x),
        "col2im": (lambda x: F.fold(x, (4, 5), 2), _x(2, 12, 12)),
        "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), _x(1, 8, 3, 4)),
        "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), _x(1, 2, 4, 6)),
        "channel_shuffle": (lambda x: F.channel_shuffle(x, 2), _x(1, 4, 3, 3)),
        "pad": (lambda x: F.pad(x, (1, 2, 0, 3), value=0.5), x),
        "pad_crop": (lambda x: F.pad(x, (-1, 1)), x),
        "pad_reflect1": (lambda x: F.pad(x, (2, 1), "reflect"), _x(2, 3, 4)),
        "pad_reflect2": (lambda x: F.pad(x, (2, 1, 1, 1), "reflect"), x),
        "pad_replicate1": (lambda x: F.pad(x, (2, 1), "replicate"), _x(2, 3, 4)),
        "pad_replicate2": (lambda x: F.pad(x, (2, 1, 0, 1), "replicate"), x),
        "pad_replicate3": (lambda x: F.pad(x, (2, 1, 0, 1, 1, 1), "replicate"), _x(1, 2, 3, 4, 5)),
        "pad_circular": (lambda x: F.pad(x, (2, 1, 1, 0), "circular"), x),
        "to_int": (lambda x: x.to(torch.int32), x),
        "to_half": (lambda x: x.half(), x),
        "to_bool": (lambda x: x.bool(), _i(2, 3)),
        "to_float": (lambda x: x.float(), _i(2, 3, dtype=torch.int8)),
        "one_hot": (lambda x: F.one_hot(x, 4), torch.tensor([0, 3, 1])),
        "zeros_like": (lambda x: torch.zeros_like(x) + x, x),
        "full_like": (lambda x: torch.full_like(x, 2.5) * x, x),
        "arange": (lambda x: x + torch.arange(5.0), x),
        "linspace": (lambda x: x + torch.linspace(0, 1, 5), x),
        "eye": (lambda x: x @ torch.eye(5), x),
        "ones": (lambda x: x + torch.ones(300, 400), _x(1, 1)),
        "meshgrid": (lambda x, y: torch.meshgrid(x, y, indexing="ij"), _x(3), _x(4)),
        "broadcast": (torch.broadcast_tensors, _x(3, 1), _x(4)),
        "bucketize": (lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), x),
        "hsplit": (lambda x: torch.hsplit(x, 3), _x(2, 6)),
        "as_strided": (lambda x: x.as_strided((3, 2), (2, 1), 1), _x(4, 4)),
        "scalar_tensor": (lambda x: x + torch.tensor(2.0), x),
        "rank0": (lambda x: x.sum() * 2, x),
        "rank5": (lambda x: torch.relu(x), _x(1, 2, 1, 2, 3)),
    }
    return {f"shape_{name}": Case(function, tuple(inputs)) for name, (function, *inputs) in calls.items()}


def _matrix() -> dict[str, Case]:
    a, b = _x(2, 3, 4), _x(2, 4, 5, seed=1)
    q, k, v = (_x(1, 2, 6, 8, seed=s) for s in range(3))
    return {
        "mm": Case(torch.mm, (a[0], b[0])),
        "bmm": Case(torch.bmm, (a, b)),
        "matmul": Case(torch.matmul, (a, b)),
        "matmul_broadcast": Case(torch.matmul, (_x(2, 1, 3, 4), _x(5, 4, 2))),
        "matmul_vector": Case(torch.matmul, (a, _x(4))),
        "matmul_2d": Case(torch.matmul, (a, _x(4, 3))),
        "matmul_left": Case(torch.matmul, (_x(3, 4), b)),
        "mv": Case(torch.mv, (_x(3, 4), _x(4))),
        "dot": Case(torch.dot, (_x(4), _x(4, seed=1))),
        "outer": Case(torch.outer, (_x(3), _x(4))),
        "addmm": Case(lambda c, x, y: torch.addmm(c, x, y, beta=0.5, alpha=2), (_x(5), a[0], b[0])),
        "baddbmm": Case(torch.baddbmm, (_x(2, 3, 5), a, b)),
        "linear": Case(F.linear, (a, _x(6, 4), _x(6))),
        "linear_no_bias": Case(F.linear, (_x(3, 4), _x(6, 4))),
        "linear_1d": Case(F.linear, (_x(4), _x(6, 4), _x(6))),
        "linear_4d": Case(F.linear, (_x(2, 3, 2, 4), _x(6, 4), _x(6))),
        "bilinear": Case(F.bilinear, (_x(2, 3), _x(2, 4), _x(5, 3, 4), _x(5))),
        "einsum": Case(lambda x, y: torch.einsum("bhid,bhjd->bhij", x, y), (q, k)),
        "einsum_outer": Case(lambda x, y: torch.einsum("i,jk->ijk", x, y), (_x(3), _x(4, 2))),
        "sdpa": Case(F.scaled_dot_product_attention, (q, k, v)),
        "sdpa_causal": Case(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v)),
        "sdpa_scale": Case(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3), (q, k, v)),
        "sdpa_mask": Case(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), (q, k, v, _x(6, 6))),
        "sdpa_bool": Case(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.arange(6)[:, None] > torch.arange(6)),
            (q, k, v),
        ),
        "sdpa_gqa": Case(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), (q, k[:, :1], v[:, :1])
        ),
        "embedding": Case(F.embedding, (torch.tensor([[0, 3], [2, 2]]), _x(5, 4))),
        "kron": Case(torch.kron, (_x(2, 2), _x(2, 3))),
        "tensordot": Case(lambda x, y: torch.tensordot(x, y, ([2], [1])), (a, b)),
        "cross": Case(torch.cross, (_x(4, 3), _x(4, 3, seed=1))),
    }


def _modules() -> dict[str, Case]:
    image, line, volume, few = _x(1, 4, 9, 11), _x(2, 4, 12), _x(1, 2, 4, 6, 6), _x(4, 8, 8)
    layers: dict[str, tuple[nn.Module, Any]] = {
        "conv1d": (nn.Conv1d(4, 6, 3, padding=1), line),
        "conv1d_same": (nn.Conv1d(4, 6, 4, padding="same", dilation=2), line),
        "conv2d": (nn.Conv2d(4, 6, 3, stride=2, padding=1), image),
        "conv2d_depthwise": (nn.Conv2d(4, 8, 3, groups=4, dilation=2), image),
        "conv2d_same": (nn.Conv2d(4, 6, (2, 3), padding="same"), image),
        "conv2d_circular": (nn.Conv2d(4, 3, 3, padding=1, padding_mode="circular"), image),
        "conv2d_unbatched": (nn.Conv2d(4, 3, 3), few),
        "conv3d": (nn.Conv3d(2, 3, 3, stride=(1, 2, 1), padding=1), volume),
        "conv3d_groups": (nn.Conv3d(2, 4, (2, 3, 1), groups=2, dilation=(2, 1, 1), bias=False), volume),
        "conv_transpose1d": (nn.ConvTranspose1d(4, 3, 4, stride=2, padding=1, output_padding=1), line),
        "conv_transpose2d": (nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), image),
        "conv_transpose2d_dilated": (nn.ConvTranspose2d(4, 2, 3, dilation=2, padding=1, bias=False), image),
        "conv_transpose3d": (nn.ConvTranspose3d(2, 3, 3, stride=2, padding=1, output_padding=1), _x(1, 2, 3, 4, 4)),
        "batch_norm1d": (nn.BatchNorm1d(4), line),
        "batch_norm1d_2d": (nn.BatchNorm1d(5), _x(3, 5)),
        "batch_norm2d": (nn.BatchNorm2d(4), image),
        "batch_norm3d": (nn.BatchNorm3d(2), volume),
        "batch_norm_no_stats": (nn.BatchNorm2d(4, track_running_stats=False), image),
        "batch_norm_plain": (nn.BatchNorm2d(4, affine=False), image),
        "instance_norm": (nn.InstanceNorm2d(4, affine=True), image),
        "instance_norm_stats": (nn.InstanceNorm2d(4, track_running_stats=True), image),
        "group_norm": (nn.GroupNorm(2, 4), image),
        "layer_norm": (nn.LayerNorm(11), image),
        "layer_norm_2": (nn.LayerNorm([9, 11], elementwise_affine=False), image),
        "local_response_norm": (nn.LocalResponseNorm(3), image),
        "rms_norm_plain": (nn.RMSNorm(11), image),
        "max_pool1d": (nn.MaxPool1d(3, 2, 1), line),
        "max_pool2d": (nn.MaxPool2d(3, 2, 1), image),
        "max_pool2d_ceil": (nn.MaxPool2d(2, ceil_mode=True), image),
        "max_pool2d_dilated": (nn.MaxPool2d(2, 1, dilation=2), image),
        "max_pool2d_indices": (nn.MaxPool2d(2, return_indices=True), image),
        "max_pool3d": (nn.MaxPool3d(2, padding=1), volume),
        "max_pool3d_ceil": (nn.MaxPool3d((2, 4, 4), ceil_mode=True), volume),
        "max_pool2d_unbatched": (nn.MaxPool2d(2), few),
        "avg_pool1d": (nn.AvgPool1d(3, 2, 1), line),
        "avg_pool2d": (nn.AvgPool2d(3, 2, 1), image),
        "avg_pool2d_exclude": (nn.AvgPool2d(3, 2, 1, count_include_pad=False), image),
        "avg_pool2d_ceil": (nn.AvgPool2d(2, ceil_mode=True), image),
        "avg_pool2d_divisor": (nn.AvgPool2d(2, divisor_override=3), image),
        "avg_pool3d": (nn.AvgPool3d((2, 3, 3), stride=1, padding=1), volume),
        "avg_pool3d_exclude": (nn.AvgPool3d(3, 2, 1, ceil_mode=True, count_include_pad=False), volume),
        "avg_pool3d_divisor": (nn.AvgPool3d(2, divisor_override=5), volume),
        "adaptive_avg1d": (nn.AdaptiveAvgPool1d(5), line),
        "adaptive_avg2d": (nn.AdaptiveAvgPool2d((4, 3)), image),
        "adaptive_avg2d_one": (nn.AdaptiveAvgPool2d(1), image),
        "adaptive_avg2d_keep": (nn.AdaptiveAvgPool2d((None, 2)), image),
        "adaptive_avg3d": (nn.AdaptiveAvgPool3d((2, 4, 3)), volume),
        "adaptive_avg3d_one": (nn.AdaptiveAvgPool3d(1), volume),
        "adaptive_max1d": (nn.AdaptiveMaxPool1d(4), line),
        "adaptive_max2d": (nn.AdaptiveMaxPool2d((3, 11)), image),
        "adaptive_max2d_uneven": (nn.AdaptiveMaxPool2d((4, 3)), image),
        "lp_pool": (nn.LPPool2d(2, 3, 2), image),
        "upsample_nearest": (nn.Upsample(scale_factor=2), image),
        "upsample_nearest_size": (nn.Upsample(size=(7, 20)), image),
        "upsample_nearest1d": (nn.Upsample(scale_factor=1.5), line),
        "upsample_bilinear": (nn.Upsample(scale_factor=2, mode="bilinear"), image),
        "upsample_bilinear_corners": (nn.Upsample(size=(5, 30), mode="bilinear", align_corners=True), image),
        "upsample_bilinear_odd": (nn.Upsample(scale_factor=(1.7, 0.6), mode="bilinear"), image),
        "upsample_linear": (nn.Upsample(scale_factor=2, mode="linear"), line),
        "upsample_bicubic": (nn.Upsample(scale_factor=2, mode="bicubic"), _x(1, 2, 4, 5)),
        "upsample_trilinear": (nn.Upsample(scale_factor=2, mode="trilinear"), _x(1, 2, 2, 3, 3)),
        "upsample_nearest3d": (nn.Upsample(scale_factor=2), _x(1, 2, 2, 3, 3)),
        "upsample_exact": (nn.Upsample(scale_factor=1.5, mode="nearest-exact"), image),
        "lstm": (nn.LSTM(4, 6, batch_first=True), _x(2, 5, 4)),
        "lstm_deep": (nn.LSTM(4, 6, 2, bidirectional=True), _x(5, 1, 4)),
        "lstm_projected": (nn.LSTM(4, 6, proj_size=3, bias=False), _x(3, 1, 4)),
        "lstm_unbatched": (nn.LSTM(4, 6), _x(3, 4)),
        "gru": (nn.GRU(4, 6, batch_first=True), _x(2, 5, 4)),
        "gru_deep": (nn.GRU(4, 6, 2, bidirectional=True, bias=False), _x(3, 2, 4)),
        "rnn": (nn.RNN(4, 6), _x(3, 2, 4)),
        "rnn_relu": (nn.RNN(4, 6, nonlinearity="relu", bidirectional=True), _x(3, 2, 4)),
        "lstm_cell": (nn.LSTMCell(4, 6), _x(2, 4)),
        "gru_cell": (nn.GRUCell(4, 6), _x(2, 4)),
        "rnn_cell": (nn.RNNCell(4, 6), _x(2, 4)),
        "transformer_layer": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), _x(1, 5, 8)),
        "transformer_encoder": (
            nn.TransformerEncoder(
                nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True), 2, enable_nested_tensor=False
            ),
            _x(1, 5, 8),
        ),
        "softmax2d": (nn.Softmax2d(), image),
        "prelu_module": (nn.PReLU(4), image),
        "rrelu": (nn.RReLU(), image),
        "dropout": (nn.Sequential(nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Dropout2d(0.2)), image),
        "embedding_module": (nn.Embedding(7, 3), torch.tensor([[1, 6, 0]])),
        "zero_pad": (nn.ZeroPad2d(2), image),
        "constant_pad1d": (nn.ConstantPad1d((1, 2), 3.0), line),
        "reflection_pad": (nn.ReflectionPad2d(2), image),
        "unfold_module": (nn.Unfold(3), image),
        "cosine_module": (nn.Flatten(), image),
        "identity": (nn.Sequential(nn.Identity(), nn.ReLU()), image),
        "silu_inplace": (
            nn.Sequential(nn.SiLU(inplace=True), nn.Hardswish(inplace=True), nn.LeakyReLU(0.1, inplace=True)),
            image,
        ),
    }
    torch.manual_seed(0)
    cases = {}
    for name, (layer, x) in layers.items():
        for parameter in layer.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)
        for key, buffer in layer.named_buffers():
            if buffer.is_floating_point():
                nn.init.uniform_(buffer, 0.3 if "var" in key else -0.5, 1.5)
        cases[name] = Case(layer.eval(), (x,))
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    cases["attention"] = Case(lambda x: attention(x, x, x, need_weights=False)[0], (_x(1, 5, 8),))
    cases["attention_weights"] = Case(lambda x: attention(x, x, x), (_x(1, 5, 8),))
    cases["grid_sample"] = Case(
        lambda x, g: F.grid_sample(x, g, align_corners=False), (image, _x(1, 4, 5, 2, low=-1, high=1))
    )
    cases["affine_grid"] = Case(lambda t: F.affine_grid(t, [1, 2, 4, 5], align_corners=False), (_x(1, 2, 3),))
    cases["interpolate_aa"] = Case(lambda x: F.interpolate(x, (5, 6), mode="bilinear", antialias=True), (image,))
    return cases


def _quantized() -> dict[str, Case]:
    """Quantize and dequantize as PT2E writes them."""
    ops = torch.ops.quantized_decomposed
    x, weight, q = _x(2, 3, 4), _x(4, 3, 2), _i(2, 3, 4, low=-128, high=128, dtype=torch.int8)
    scales, zeros = torch.tensor([0.02, 0.03, 0.01, 0.04]), torch.zeros(4, dtype=torch.int64)
    wide, narrow = (-128, 127, torch.int8), (0, 127, torch.int8)
    return {
        # A range that every integer type has, for derive_constraints.py, which takes the first call of an operator.
        "quantize_narrow": Case(lambda x: ops.quantize_per_tensor(x, 0.02, 3, *narrow), (x,)),
        "dequantize_narrow": Case(lambda q: ops.dequantize_per_tensor(q, 0.02, 3, *narrow), (q,)),
        "quantize_channel_narrow": Case(
            lambda w, s, z: ops.quantize_per_channel(w, s, z, 0, *narrow), (weight, scales, zeros)
        ),
        "dequantize_channel_narrow": Case(
            lambda q, s, z: ops.dequantize_per_channel(q, s, z, 2, *narrow), (q, scales, zeros)
        ),
        "quantize": Case(lambda x: ops.quantize_per_tensor(x, 0.02, -3, *wide), (x,)),
        "quantize_uint8": Case(lambda x: ops.quantize_per_tensor(x, 0.03, 100, 0, 255, torch.uint8), (x,)),
        "quantize_int16": Case(lambda x: ops.quantize_per_tensor(x, 1e-4, 0, -32768, 32767, torch.int16), (x,)),
        "dequantize": Case(lambda q: ops.dequantize_per_tensor(q, 0.02, -3, *wide), (q,)),
        "quantize_channel": Case(
            lambda w, s, z: ops.quantize_per_channel(w, s, z, 0, -127, 127, torch.int8), (weight, scales, zeros)
        ),
        "dequantize_channel": Case(lambda q, s, z: ops.dequantize_per_channel(q, s, z, 2, *wide), (q, scales, zeros)),
        "dequantize_folded": Case(lambda x: x + ops.dequantize_per_tensor(q, 0.02, -3, *wide), (x,)),
    }


@cache
def exported(name: str) -> torch.export.ExportedProgram:
    """A case as an exported program; made once, since no test changes it."""
    case = all_cases()[name]
    return torch.export.export(Module(case.function).eval(), case.inputs)


@cache
def all_cases() -> dict[str, Case]:
    """Every case by name."""
    return {**_unary(), **_binary(), **_reduce(), **_shapes(), **_matrix(), **_modules(), **_quantized()}
