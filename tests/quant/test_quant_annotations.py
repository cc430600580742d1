"""Golden text: which edges of which pattern carry which spec."""

from __future__ import annotations

from textwrap import dedent

import pytest
import torch
import torch.nn.functional as F
from quant_helpers import Function, annotations
from torch import nn

X = (torch.randn(1, 8, 6, 6),)
XY = (torch.randn(1, 8, 6, 6), torch.randn(1, 8, 6, 6))
M = (torch.randn(2, 8),)


class ConvUsedTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.conv(x)
        return y.clamp(-0.3, 0.7), y


class ConvHardtanhCat(nn.Module):
    """B48: the cat of a convolution's result with its input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, F.hardtanh(self.conv(x), 0.0, 6.0)], 3)


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * F.hardsigmoid(self.fc(F.adaptive_avg_pool2d(x, 1)))


class LinearChain(nn.Module):
    """B51: parameters must not leak from one linear layer into the next."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x)).reshape(-1)


class EmbeddingLinear(nn.Module):
    """B109: indices and look-up stay as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.fc = nn.Embedding(32, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.table(x))


class NormBeforeConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(self.norm(x))


CASES: list[tuple[str, nn.Module, tuple[torch.Tensor, ...], str]] = [
    (
        "conv_bn_relu6",
        nn.Sequential(nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4), nn.ReLU6()),
        X,
        """
        conv2d(input_1: q0, _0_folded_weight: w[0], _0_folded_bias: bias) -> -
        hardtanh() -> q1
        """,
    ),
    (
        "conv1d_relu_inplace",
        nn.Sequential(nn.Conv1d(8, 4, 3), nn.ReLU(inplace=True)),
        (torch.randn(1, 8, 9),),
        """
        conv1d(input_1: q0, _0_weight: w[0], _0_bias: bias) -> -
        relu() -> q1
        """,
    ),
    (
        "linear_bn_relu",
        nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.ReLU()),
        M,
        """
        linear(input_1: q0, _0_folded_weight: w[0], _0_folded_bias: bias) -> -
        relu() -> q1
        """,
    ),
    (
        "transposed_groups",
        nn.ConvTranspose2d(8, 8, 2, groups=2),
        X,
        "conv_transpose2d(input_1: q0, weight: w[1], bias: bias) -> q1",
    ),
    (
        "transposed_depthwise",
        nn.ConvTranspose2d(8, 16, 2, groups=8),
        X,
        "conv_transpose2d(input_1: q0, weight: w[0], bias: bias) -> q1",
    ),
    (
        "conv_used_elsewhere_is_not_fused",
        ConvUsedTwice(),
        X,
        """
        conv2d(x: q0, conv_weight: w[0], conv_bias: bias) -> q1
        clamp(conv2d: q1) -> q2
        """,
    ),
    (
        "cat_keeps_the_convolution",
        ConvHardtanhCat(),
        X,
        """
        conv2d(x: q0, conv_weight: w[0]) -> -
        hardtanh() -> q0
        cat(x: q0, hardtanh: q0) -> q0
        """,
    ),
    (
        "cat_with_fixed_operand_requantizes_it",
        Function(lambda x: torch.cat([torch.sigmoid(x), x * x], 1)),
        X,
        """
        sigmoid(x: q0) -> fixed(1/256, -128)
        mul(x: q0) -> q1
        cat(sigmoid: q1, mul: q1) -> q1
        """,
    ),
    (
        "cat_of_equal_fixed_operands_shares",
        Function(lambda x: torch.cat([torch.sigmoid(x), F.hardsigmoid(x)], 1)),
        X,
        """
        sigmoid(x: q0) -> fixed(1/256, -128)
        hardsigmoid(x: q0) -> fixed(1/256, -128)
        cat(sigmoid: fixed(1/256, -128), hardsigmoid: fixed(1/256, -128)) -> fixed(1/256, -128)
        """,
    ),
    (
        "squeeze_excite",
        SqueezeExcite(),
        X,
        """
        adaptive_avg_pool2d(x: q0) -> q0
        conv2d(adaptive_avg_pool2d: q0, fc_weight: w[0], fc_bias: bias) -> q1
        hardsigmoid(conv2d: q1) -> fixed(1/256, -128)
        mul(x: q0, hardsigmoid: fixed(1/256, -128)) -> q2
        """,
    ),
    (
        "add_relu_is_one_operator",
        Function(lambda x, y: F.relu(x + y)),
        XY,
        """
        add(x: q0, y: q1) -> -
        relu() -> q2
        """,
    ),
    (
        "inplace_add",
        Function(lambda x, y: (x * 2).add_(y).relu_()),
        XY,
        """
        mul(x: q0) -> q1
        add(mul: q1, y: q2) -> -
        relu() -> q3
        """,
    ),
    (
        "scalars_stay_scalars",
        Function(lambda x: F.max_pool2d(3.0 - x, 2)),
        X,
        """
        rsub(x: q0) -> q1
        max_pool2d(rsub: q1) -> q1
        """,
    ),
    (
        "one_function_of_one_tensor",
        Function(lambda x: x * F.relu6(x + 3) / 6),
        X,
        """
        add(x: q0) -> -
        mul(x: q0) -> -
        div() -> q1
        """,
    ),
    (
        "softmax_tanh",
        Function(lambda x: torch.softmax(torch.tanh(x), 1)),
        M,
        """
        tanh(x: q0) -> fixed(1/128, 0)
        softmax(tanh: fixed(1/128, 0)) -> fixed(1/256, -128)
        """,
    ),
    (
        "shared_cluster",
        Function(lambda x, y: torch.maximum(F.max_pool2d(x, 2), F.avg_pool2d(y, 2)).flatten(1).unsqueeze(0)),
        XY,
        """
        max_pool2d(x: q0) -> q0
        avg_pool2d(y: q0) -> q0
        maximum(max_pool2d: q0, avg_pool2d: q0) -> q0
        flatten(maximum: q0) -> q0
        unsqueeze(flatten: q0) -> q0
        """,
    ),
    (
        "split_and_chunk",
        Function(lambda x: (x.exp().chunk(2, 1)[1], torch.stack(x.exp().unbind(1)[:2]))),
        X,
        """
        exp(x: q0) -> q1
        chunk(exp: q1) -> -
        getitem_1() -> q1
        exp_1(x: q0) -> q2
        unbind(exp_1: q2) -> -
        getitem_2() -> q2
        getitem_3() -> q2
        stack(getitem_2: q2, getitem_3: q2) -> q2
        """,
    ),
    (
        "mean_has_its_own",
        Function(lambda x: x.mean((2, 3)).amax(1)),
        X,
        """
        mean(x: q0) -> q1
        amax(mean: q1) -> q1
        """,
    ),
    (
        "prelu",
        nn.PReLU(8),
        X,
        "prelu(input_1: q0, weight: w[0]) -> q1",
    ),
    (
        "constant_operand",
        nn.ParameterList([nn.Parameter(torch.randn(1, 8, 1, 1))]),
        X,
        "add(x: q0, p_0: q1) -> q2",
    ),
    (
        "linear_chain",
        LinearChain(),
        (torch.randn(2, 3, 8),),
        """
        linear(x: q0, a_weight: w[0], a_bias: bias) -> q1
        linear_1(linear: q1, b_weight: w[0], b_bias: bias) -> q2
        reshape(linear_1: q2) -> q2
        """,
    ),
    (
        "embedding_stays",
        EmbeddingLinear(),
        (torch.zeros(1, 6, dtype=torch.int32),),
        "linear(embedding: q0, fc_weight: w[0], fc_bias: bias) -> q1",
    ),
    (
        "data_movement_alone_stays_float",
        Function(lambda x: F.layer_norm(x.permute(0, 2, 3, 1).reshape(1, 36, 8), [8])),
        X,
        "",
    ),
    (
        "data_movement_beside_a_quantized_operator",
        Function(lambda x: F.layer_norm(x, [6])[:, :, 0].exp()),
        X,
        """
        select(layer_norm: q0) -> q0
        exp(select: q0) -> q1
        """,
    ),
    (
        "local_response_norm",
        nn.LocalResponseNorm(3),
        X,
        """
        mul(input_1: q0) -> -
        div(input_1: q0) -> q1
        """,
    ),
    (
        "batch_norm_alone_is_depthwise",
        NormBeforeConv(),
        X,
        """
        batch_norm(x: q0, batch_norm_weight: w[0], batch_norm_bias: bias) -> q1
        conv2d(batch_norm: q1, conv_weight: w[0], conv_bias: bias) -> q2
        """,
    ),
    (
        "integers_and_masks_stay",
        Function(lambda x, i: (x * 2, i + 1, x > 0)),
        (X[0], torch.zeros(3, dtype=torch.int64)),
        "mul(x: q0) -> q1",
    ),
    (
        "matmul",
        Function(lambda x, y: torch.bmm(x, y)),
        (torch.randn(2, 3, 4), torch.randn(2, 4, 5)),
        "bmm(x: q0, y: q1) -> q2",
    ),
    (
        "pad_upsample_dropout",
        Function(lambda x: F.interpolate(F.dropout(F.pad(x.exp(), (1, 1)), training=False), scale_factor=2.0)),
        X,
        """
        exp(x: q0) -> q1
        pad(exp: q1) -> q1
        upsample_nearest2d(pad: q1) -> q1
        """,
    ),
    (
        "infinite_padding_stays_float",
        Function(lambda x: F.pad(x.exp(), (1, 1), value=float("-inf"))),
        X,
        "exp(x: q0) -> q1",
    ),
]


class AddParameter(nn.Module):
    def __init__(self, values: nn.ParameterList) -> None:
        super().__init__()
        self.p = values

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.p[0]


@pytest.mark.parametrize("name, module, inputs, expected", CASES, ids=[c[0] for c in CASES])
def test_annotations(name: str, module: nn.Module, inputs: tuple[torch.Tensor, ...], expected: str) -> None:
    if isinstance(module, nn.ParameterList):
        module = AddParameter(module)
    assert annotations(module, inputs) == dedent(expected).strip()


@pytest.mark.parametrize(
    "functional, inplace",
    [
        (F.relu, lambda x: F.relu(x, inplace=True)),
        (F.hardswish, lambda x: F.hardswish(x, inplace=True)),
        (lambda x: F.leaky_relu(x, 0.1), lambda x: F.leaky_relu(x, 0.1, inplace=True)),
        (lambda x: F.hardtanh(x, -1.0, 1.0), lambda x: F.hardtanh(x, -1.0, 1.0, inplace=True)),
        (F.silu, lambda x: F.silu(x, inplace=True)),
        (F.elu, lambda x: F.elu(x, inplace=True)),
        (lambda x: x.clamp(min=0), lambda x: x.clamp_(min=0)),
        (lambda x: x.clamp_min(0), lambda x: x.clamp_min_(0)),
        (lambda x: x.mul(2.0), lambda x: x.mul_(2.0)),
        (torch.sigmoid, torch.sigmoid_),
    ],
)
def test_inplace_equals_functional(functional: object, inplace: object) -> None:
    class Net(nn.Module):
        def __init__(self, function: object) -> None:
            super().__init__()
            self.conv, self.function = nn.Conv2d(8, 4, 1), function

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.function(self.conv(x))  # type: ignore[operator]

    assert annotations(Net(functional), X) == annotations(Net(inplace), X)


def test_every_rule_runs_on_some_operator() -> None:
    """A rule for an overload that does not exist would never run: the registry holds real overloads only."""
    from quant.annotate import RULES

    assert all(isinstance(target, torch._ops.OpOverload) for target in RULES)


def test_a_second_rule_for_an_operator_is_refused() -> None:
    from quant.annotate import annotates

    with pytest.raises(ValueError, match="already has the annotation rule"):
        annotates(torch.ops.aten.conv2d.default)(lambda a, node: None)
