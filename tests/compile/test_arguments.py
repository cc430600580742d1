"""Arguments and outputs of all kinds: exported programs with samples that do not fit, nested and keyword arguments,
numbers and None among tensors; how they are compiled, verified and refused."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import lowering
import numpy as np
import pytest
import torch
from torch import nn
from torch.export import ExportedProgram

import arm_lower
from arm_lower.compile import Compiled
from arm_lower.errors import ArmLowerError, QuantizationError
from quant import convert_pt2e, prepare_pt2e, quantize
from quant.quantizer import EthosUQuantizer

TARGET = "ethos-u55-128"
SHAPE = (1, 8)
SAMPLES = lowering.samples(SHAPE)
X = SAMPLES[0][0]


class Net(nn.Module):
    """A linear layer inside a function of it and the arguments."""

    def __init__(self, function: Callable[..., Any] = lambda layer, x: layer(x)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8)
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self.layer, *args, **kwargs)


def network(function: Callable[..., Any] = lambda layer, x: layer(x)) -> nn.Module:
    return Net(function).eval()


def compiled(model: nn.Module | ExportedProgram, calibration: Any = SAMPLES, **options: Any) -> Compiled:
    return arm_lower.compile(model, calibration, TARGET, **{"effort": "fast", **options})


def saved(program: ExportedProgram, examples: bool) -> ExportedProgram:
    """The program as it comes from a file."""
    buffer = io.BytesIO()
    if not examples:
        program._example_inputs = None
    torch.export.save(program, buffer)
    buffer.seek(0)
    return torch.export.load(buffer)


# -- exported programs -------------------------------------------------------------------------------------------

WRONG = {
    "shape": ([(torch.rand(1, 9),)], r"input 0.* has the shape \(1, 9\), the model takes \(1, 8\)"),
    "batch": ([(torch.rand(2, 8),)], r"input 0.* has the shape \(2, 8\), the model takes \(1, 8\)"),
    "no batch": ([(torch.rand(8),)], r"input 0.* has the shape \(8,\), the model takes \(1, 8\)"),
    "double": ([(torch.rand(1, 8).double(),)], "has the dtype torch.float64, the model takes torch.float32"),
    "integers": ([(torch.ones(1, 8).int(),)], "has the dtype torch.int32, the model takes torch.float32"),
    "two": ([(X, X)], "has 2 inputs, the model takes 1"),
    "none": ([()], "has 0 inputs, the model takes 1"),
    "number": ([(1.0,)], "input 0.* is a float, not a torch.Tensor"),
    "nested": ([([X],)], "input 0.* is a list, not a torch.Tensor"),
    "mapping": ([({"x": X},)], "input 0.* is a dict, not a torch.Tensor"),
    "infinity": ([(X / 0,)], "contains"),
    "second": ([(X,), (torch.rand(1, 9),)], r"calibration sample 1, input 0.* \(1, 9\)"),
}


@pytest.mark.parametrize("kind", ["fresh", "file", "without examples"])
@pytest.mark.parametrize("name", WRONG)
def test_samples_that_do_not_fit_an_exported_program(name: str, kind: str) -> None:
    program = torch.export.export(network(), (X,))
    if kind != "fresh":
        program = saved(program, kind == "file")
    samples, message = WRONG[name]
    for call in (lambda: compiled(program, samples), lambda: quantize(program, None, samples)):
        with pytest.raises(QuantizationError, match=message):
            call()


@pytest.mark.parametrize("examples", [True, False])
def test_an_exported_program_from_a_file(examples: bool) -> None:
    c = compiled(saved(torch.export.export(network(), (X,)), examples), verify=True)
    assert c.verify(SAMPLES).exact and c.report.delegates
    assert compiled(network()).buffer == c.buffer


def test_example_inputs_that_do_not_fit_an_exported_program() -> None:
    program = torch.export.export(network(), (X,))
    for calibration in (None, SAMPLES):
        with pytest.raises(ArmLowerError, match=r"example_inputs, input 0 has the shape \(2, 8\)"):
            compiled(program, calibration, example_inputs=(torch.rand(2, 8),))
        with pytest.raises(ArmLowerError, match="example_inputs is a int"):
            compiled(program, calibration, example_inputs=5)
    assert compiled(program, None, example_inputs=(X,), verify=True).buffer == compiled(program, None).buffer


def test_dynamic_sizes_without_examples() -> None:
    size = torch.export.Dim("n", min=1, max=4)
    program = torch.export.export(network(), (torch.rand(2, 8),), dynamic_shapes=(({0: size},),))
    for calibration in (None, SAMPLES):
        with pytest.raises(ArmLowerError, match="dynamic") as caught:
            compiled(saved(program, False), calibration)
        assert "fixed sizes" in caught.value.hint


def keyword_program() -> ExportedProgram:
    return torch.export.export(network(lambda layer, x, *, y: layer(x) + y), (X,), {"y": X})


def test_keyword_inputs() -> None:
    """They cannot be calibrated, but a program with them is compiled as it is, and run."""
    program = keyword_program()
    for call in (lambda: compiled(program, [(X, X)]), lambda: quantize(program, None, SAMPLES)):
        with pytest.raises(QuantizationError, match=r"takes keyword inputs \(y\)") as caught:
            call()
        assert "positional" in caught.value.hint
    c = compiled(program, None, verify=True)
    (result,) = c.verify([(X, 2 * X)]).results[0]
    with torch.no_grad():
        np.testing.assert_allclose(result, program.module()(X, y=2 * X), rtol=1e-5)


def test_a_quantized_module_with_keyword_inputs() -> None:
    prepared = prepare_pt2e(keyword_program(), EthosUQuantizer())
    for (x,) in SAMPLES:
        prepared(x, y=x)
    quantized = convert_pt2e(prepared)
    c = compiled(quantized, None, example_inputs=(X, X), verify=True)
    found = c.verify([(x, x) for (x,) in SAMPLES])
    assert found.exact and found.outputs[0].max_difference == 0


@pytest.mark.parametrize("io_dtype", ["float", "int8"])
def test_an_exported_program_in_channels_last(io_dtype: str) -> None:
    """Its samples may have any layout."""
    model, samples = nn.Conv2d(3, 4, 3).eval(), lowering.samples((1, 3, 8, 8))
    options: dict[str, Any] = {"io_layout": "channels_last", "io_dtype": io_dtype, "verify": True}
    program = torch.export.export(model, samples[0])
    found = compiled(program, samples, **options)
    assert found.verify(samples).exact and found.boundary["outputs"][0].layout == "channels_last"
    nhwc = [(x.contiguous(memory_format=torch.channels_last),) for (x,) in samples]
    assert compiled(program, nhwc, **options).buffer == found.buffer


# -- nested arguments --------------------------------------------------------------------------------------------

NESTED: dict[str, tuple[Callable[..., Any], Callable[[torch.Tensor], tuple[Any, ...]]]] = {
    "dict": (lambda layer, d: layer(d["x"]) + d["y"], lambda x: ({"x": x, "y": x * x},)),
    "list": (lambda layer, items: layer(items[0]) + items[1], lambda x: ([x, x * x],)),
    "tuple": (lambda layer, items, z: layer(items[0]) + items[1] * z, lambda x: ((x, x * x), x + 1)),
    "deep": (lambda layer, d: layer(d["a"][0]["b"]) + d["c"], lambda x: ({"a": [{"b": x}], "c": x * x},)),
    "number": (lambda layer, k, x: layer(x) * k, lambda x: (2.0, x)),
    "none": (lambda layer, k, x: layer(x), lambda x: (None, x)),
    "last number": (lambda layer, x, k, y: layer(x) * k + y, lambda x: (x, 3, x * x)),
}


@pytest.mark.parametrize("io_dtype", ["float", "int8"])
@pytest.mark.parametrize("name", NESTED)
def test_nested_arguments(name: str, io_dtype: str) -> None:
    function, arguments = NESTED[name]
    samples = [arguments(x) for (x,) in SAMPLES]
    c = compiled(network(function), samples, io_dtype=io_dtype, verify=True)
    found = c.verify(samples)
    assert found.exact and found.delegates and found.outputs[0].max_difference == 0


def test_keys_in_another_order() -> None:
    function, arguments = NESTED["dict"]
    samples = [arguments(x) for (x,) in SAMPLES]
    swapped = [({"y": d["y"], "x": d["x"]},) for (d,) in samples]
    c = compiled(network(function), [samples[0], *swapped[1:]], verify=True)
    found, again = c.verify(samples), c.verify(swapped)
    assert found.outputs == again.outputs and found.outputs[0].max_difference == 0
    assert c.buffer == compiled(network(function), samples).buffer


def test_nested_otherwise() -> None:
    function, arguments = NESTED["dict"]
    samples = [arguments(x) for (x,) in SAMPLES]
    c = compiled(network(function), samples)
    for wrong in (({"x": X, "z": X},), ({"x": X},), ([X, X],)):
        with pytest.raises(ArmLowerError, match="not nested like"):
            c.verify([wrong])
        with pytest.raises(QuantizationError, match="calibration sample 4 is not nested like"):
            compiled(network(function), [*samples, wrong])
    assert c.verify([(d["x"], d["y"]) for (d,) in samples]).outputs == c.verify(samples).outputs  # flat will do


def test_a_number_is_a_constant_of_the_program() -> None:
    samples = [(2.0, x) for (x,) in SAMPLES]
    for wrong, message in ((3.0, "is 3.0, the model was exported with 2.0"), (X, "is a tensor of shape"),
                           (None, "is None, the model was exported with 2.0")):
        with pytest.raises(QuantizationError, match=message):
            compiled(network(NESTED["number"][0]), [*samples, (wrong, X)])


# -- outputs -----------------------------------------------------------------------------------------------------

OUTPUTS: dict[str, Callable[..., Any]] = {
    "none first": lambda layer, x: (None, layer(x)),
    "number first": lambda layer, x: (x.shape[1], layer(x)),
    "all kinds": lambda layer, x: (x.shape[1], layer(x).argmax(-1), None, layer(x), 2.5),
    "mapping": lambda layer, x: {"n": 3, "y": layer(x), "z": [None, layer(x).relu()]},
    "twice": lambda layer, x: (lambda y: (y, 1, y))(layer(x)),
    "input": lambda layer, x: (1, x, layer(x)),
}


@pytest.mark.parametrize("io_dtype", ["float", "int8"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_are_compared_with_their_own(name: str, io_dtype: str) -> None:
    c = compiled(network(OUTPUTS[name]), io_dtype=io_dtype, verify=True)
    found = c.verify(SAMPLES)
    assert found.exact and [o.name for o in found.outputs] == [t.name for t in c.boundary["outputs"]]
    quantized_input = name == "input" and io_dtype == "int8"  # the reals that were given are not those that come back
    assert all(o.max_difference <= (o.step if quantized_input and o.step else 0) for o in found.outputs)


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_outputs_that_are_not_finite(value: float) -> None:
    c = compiled(network(lambda layer, x: layer(x).masked_fill(torch.arange(8) > 4, value)))
    text = str(c.verify(SAMPLES))
    assert "at most 0 " in text and "nan" not in text


# -- bfloat16 ----------------------------------------------------------------------------------------------------


def test_bfloat16() -> None:
    """numpy does not have it: a file without delegates has nothing to verify, any other is refused."""
    x = X.bfloat16()
    c = compiled(network().bfloat16(), None, example_inputs=(x,), verify=True)
    assert not c.delegates
    with pytest.raises(ArmLowerError, match="an input is bfloat16"):
        c.verify([(x,)])
    mixed = network(lambda layer, a, b: (layer(a), b + 1))
    with pytest.raises(ArmLowerError, match="an input is bfloat16") as caught:
        compiled(mixed, [(a, a.bfloat16()) for (a,) in SAMPLES], verify=True)
    assert "float32" in caught.value.hint


# -- samples of verify -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("io_dtype", ["float", "int8"])
def test_verify_takes_arrays(io_dtype: str) -> None:
    function, arguments = NESTED["dict"]
    samples = [arguments(x) for (x,) in SAMPLES]
    c = compiled(network(function), samples, io_dtype=io_dtype)
    arrays = [({k: v.numpy() for k, v in d.items()},) for (d,) in samples]
    assert c.verify(arrays).outputs == c.verify(samples).outputs
    scalars = [(torch.tensor(float(k)), x) for k, (x,) in enumerate(SAMPLES)]
    c = compiled(network(lambda layer, k, x: layer(x) * k), scalars, io_dtype=io_dtype)
    numbers = [(np.float32(float(k)), x.numpy()) for k, x in scalars]
    assert c.verify(numbers).outputs == c.verify(scalars).outputs


@pytest.mark.parametrize("inputs", [5, None, "x", torch.zeros(1, 8), np.zeros((1, 8)), {"x": X}])
def test_verify_wants_a_list(inputs: Any) -> None:
    with pytest.raises(ArmLowerError, match="inputs is a") as caught:
        compiled(network()).verify(inputs)
    assert "argument tuples" in caught.value.hint
