"""Every rewrite on small graphs in text form: what it makes of the cases it handles, and what it must leave alone."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

from arm_lower.tosa.ir import DType, Graph, Op, Tensor
from arm_lower.tosa.rewrite import Rewrite, optimize
from arm_lower.tosa.rewrite.clamp import merge_clamps
from arm_lower.tosa.rewrite.common import share_common
from arm_lower.tosa.rewrite.constants import fold_constants
from arm_lower.tosa.rewrite.dead import remove_dead
from arm_lower.tosa.rewrite.pad import fold_pads
from arm_lower.tosa.rewrite.rescale import fuse_rescales
from arm_lower.tosa.rewrite.reshape import merge_reshapes
from arm_lower.tosa.rewrite.slice import fold_crops, merge_slices
from arm_lower.tosa.rewrite.table import compose_tables
from arm_lower.tosa.rewrite.transpose import cancel_transposes
from arm_lower.tosa.text import parse, to_text
from arm_lower.tosa.verify import verify

RESCALE = (
    'input_unsigned=false, output_unsigned=false, out_dtype={out}, per_channel=false, rounding="single", scale32=true, '
    "input_zp={zp}, output_zp={ozp}, multiplier=[{mult}], shift=[{shift}]"
)


def rescale(out: str = "int8", zp: int = 0, ozp: int = 0, mult: int = 1 << 30, shift: int = 30) -> str:
    return "{" + RESCALE.format(out=f'"{out}"', zp=zp, ozp=ozp, mult=mult, shift=shift) + "}"


def graph(body: str) -> Graph:
    return parse("graph g {\n" + textwrap.indent(textwrap.dedent(body).strip(), "  ") + "\n}\n")


def body(g: Graph) -> str:
    """The statements of a graph, without its inputs, constants and outputs."""
    lines = [line.strip() for line in to_text(g).split("\n}")[0].splitlines()[1:]]
    return "\n".join(line for line in lines if not line.startswith(("input", "const", "output")))


def rewritten(rewrite: Rewrite, text: str, want: str | None) -> Graph:
    """The graph after one rewrite and the removal of what it left dead; ``want`` is None when it must not fire."""
    g = graph(text)
    verify(g)
    before = to_text(g)
    fired = rewrite(g)
    if want is None:
        assert not fired and to_text(g) == before
        return g
    assert fired
    remove_dead(g)
    verify(g)
    assert body(g) == textwrap.dedent(want).strip()
    return g


# -- clamps --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inner,outer,want",
    [
        ((-10, 50), (0, 100), (0, 50)),
        ((0, 100), (-10, 50), (0, 50)),
        ((0, 10), (20, 30), (20, 20)),  # the second clamp has the last word
        ((20, 30), (0, 10), (10, 10)),
        ((-5, 5), (-5, 5), (-5, 5)),
        ((0, 10), (10, 30), (10, 10)),
    ],
)
def test_clamp_of_clamp(inner: tuple[int, int], outer: tuple[int, int], want: tuple[int, int]) -> None:
    rewritten(
        merge_clamps,
        f"""
        input x: int8[2,3]
        a: int8[2,3] = CLAMP(x) {{min={inner[0]}, max={inner[1]}}}
        b: int8[2,3] = CLAMP(a) {{min={outer[0]}, max={outer[1]}}}
        output b
        """,
        f"b: int8[2,3] = CLAMP(x) {{min={want[0]}, max={want[1]}}}",
    )
    codes = np.arange(-128, 128)
    assert np.array_equal(np.clip(np.clip(codes, *inner), *outer), np.clip(codes, *want))


def test_clamp_of_a_clamp_that_others_read() -> None:
    rewritten(
        merge_clamps,
        """
        input x: int8[4]
        a: int8[4] = CLAMP(x) {min=0, max=9}
        b: int8[4] = CLAMP(a) {min=-9, max=5}
        output a
        output b
        """,
        """
        a: int8[4] = CLAMP(x) {min=0, max=9}
        b: int8[4] = CLAMP(x) {min=0, max=5}
        """,
    )


def test_clamp_to_the_bounds_of_its_type_goes() -> None:
    rewritten(
        merge_clamps,
        """
        input x: int8[4]
        a: int8[4] = CLAMP(x) {min=-128, max=127}
        b: int8[4] = REVERSE(a) {axis=0}
        output b
        """,
        "b: int8[4] = REVERSE(x) {axis=0}",
    )


def test_clamp_that_is_an_output_stays() -> None:
    rewritten(
        merge_clamps,
        """
        input x: int8[4]
        a: int8[4] = CLAMP(x) {min=-128, max=127}
        output a
        """,
        None,
    )


def test_clamp_that_bites_stays() -> None:
    rewritten(
        merge_clamps,
        """
        input x: int16[4]
        a: int16[4] = CLAMP(x) {min=-128, max=127}
        b: int16[4] = REVERSE(a) {axis=0}
        output b
        """,
        None,
    )


@pytest.mark.parametrize("largest,stays", [(5, False), (6, True)])
def test_clamp_of_a_table(largest: int, stays: bool) -> None:
    """A clamp to bounds that the table keeps anyway goes."""
    g = table_graph(largest)
    assert merge_clamps(g) is not stays
    remove_dead(g)
    assert [op.kind for op in g.ops] == (["TABLE", "CLAMP", "REVERSE"] if stays else ["TABLE", "REVERSE"])


def table_graph(largest: int) -> Graph:
    x, t = (
        Tensor("x", (4,), DType.INT8),
        Tensor("t", (256,), DType.INT8, (np.arange(256) % (largest + 1)).astype(np.int8)),
    )
    a, b, c = (Tensor(n, (4,), DType.INT8) for n in "abc")
    return Graph(
        "g",
        [x],
        [c],
        [Op("TABLE", [x, t], [a]), Op("CLAMP", [a], [b], {"min": 0, "max": 5}), Op("REVERSE", [b], [c], {"axis": 0})],
    )


# -- common subexpressions ---------------------------------------------------------------------------------------


def test_equal_operators_are_shared() -> None:
    rewritten(
        share_common,
        """
        input x: int8[2,3]
        a: int8[3,2] = TRANSPOSE(x) {perms=[1,0]}
        b: int8[3,2] = TRANSPOSE(x) {perms=[1,0]}
        c: int8[3,4] = CONCAT(a, b) {axis=1}
        output c
        """,
        """
        a: int8[3,2] = TRANSPOSE(x) {perms=[1,0]}
        c: int8[3,4] = CONCAT(a, a) {axis=1}
        """,
    )


def test_equal_chains_are_shared() -> None:
    rewritten(
        share_common,
        """
        input x: int8[2,3]
        a: int8[3,2] = TRANSPOSE(x) {perms=[1,0]}
        b: int8[3,2] = TRANSPOSE(x) {perms=[1,0]}
        c: int8[3,2] = REVERSE(a) {axis=0}
        d: int8[3,2] = REVERSE(b) {axis=0}
        e: int8[3,4] = CONCAT(c, d) {axis=1}
        output e
        """,
        """
        a: int8[3,2] = TRANSPOSE(x) {perms=[1,0]}
        c: int8[3,2] = REVERSE(a) {axis=0}
        e: int8[3,4] = CONCAT(c, c) {axis=1}
        """,
    )


@pytest.mark.parametrize(
    "second",
    [
        "b: int8[3,2] = RESHAPE(x) {shape=[3,2]}",
        "b: int8[3,2] = TRANSPOSE(y) {perms=[1,0]}",
    ],
    ids=["operator", "operand"],
)
def test_different_operators_are_not_shared(second: str) -> None:
    rewritten(
        share_common,
        f"""
        input x: int8[2,3]
        input y: int8[2,3]
        a: int8[3,2] = TRANSPOSE(x) {{perms=[1,0]}}
        {second}
        c: int8[3,4] = CONCAT(a, b) {{axis=1}}
        output c
        """,
        None,
    )


def test_different_attributes_are_not_shared() -> None:
    rewritten(
        share_common,
        """
        input x: int8[3,3]
        a: int8[3,3] = REVERSE(x) {axis=0}
        b: int8[3,3] = REVERSE(x) {axis=1}
        c: int8[3,6] = CONCAT(a, b) {axis=1}
        output c
        """,
        None,
    )


def test_equal_constants_are_one_and_others_not() -> None:
    for second, shared in (("[1,2]", True), ("[1,3]", False)):
        g = graph(f"""
            input x: int8[2]
            const k: int8[2] = [1,2]
            const l: int8[2] = {second}
            a: int8[4] = CONCAT(x, k) {{axis=0}}
            b: int8[4] = CONCAT(x, l) {{axis=0}}
            c: int8[8] = CONCAT(a, b) {{axis=0}}
            output c
            """)
        assert share_common(g) is shared


def test_equal_bytes_of_another_type_are_not_one() -> None:
    """B58: int32 1 and another type's 1 are different constants."""
    g = graph("""
        input x: int16[1]
        input y: int8[1]
        const k: int16[1] = [0]
        const l: int8[1] = [0]
        a: int16[2] = CONCAT(x, k) {axis=0}
        b: int8[2] = CONCAT(y, l) {axis=0}
        output a
        output b
        """)
    assert not share_common(g)


def test_outputs_are_not_shared() -> None:
    """Two outputs are two tensors, even of equal values."""
    rewritten(
        share_common,
        """
        input x: int8[2,3]
        a: int8[3,2] = TRANSPOSE(x) {perms=[1,0]}
        b: int8[3,2] = TRANSPOSE(x) {perms=[1,0]}
        output a
        output b
        """,
        None,
    )


def test_what_fuses_with_its_reader_is_not_shared() -> None:
    rewritten(
        share_common,
        f"""
        input x: int8[4]
        a: int32[4] = RESCALE(x) {rescale("int32")}
        b: int32[4] = RESCALE(x) {rescale("int32")}
        c: int32[4] = MUL(a, b) {{shift=0}}
        d: int8[4] = RESCALE(c) {rescale(shift=40)}
        output d
        """,
        None,
    )


# -- constants ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "op,shape,want",
    [
        ("RESHAPE(k) {shape=[3,2]}", "3,2", "[1,2,3,4,5,6]"),
        ("TRANSPOSE(k) {perms=[1,0]}", "3,2", "[1,4,2,5,3,6]"),
        ("SLICE(k) {start=[0,1], size=[2,2]}", "2,2", "[2,3,5,6]"),
        ("CONCAT(k, k) {axis=1}", "2,6", "[1,2,3,1,2,3,4,5,6,4,5,6]"),
        ("TILE(k) {multiples=[1,2]}", "2,6", "[1,2,3,1,2,3,4,5,6,4,5,6]"),
        ("IDENTITY(k)", "2,3", "[1,2,3,4,5,6]"),
    ],
)
def test_moved_constants_are_constants(op: str, shape: str, want: str) -> None:
    g = rewritten(
        fold_constants,
        f"""
        input x: int32[{shape}]
        const k: int32[2,3] = [1,2,3,4,5,6]
        a: int32[{shape}] = {op}
        b: int32[{shape}] = MAXIMUM(x, a)
        output b
        """,
        f"b: int32[{shape}] = MAXIMUM(x, a)",
    )
    assert f"const a: int32[{shape}] = {want}" in to_text(g)


def test_rank_zero_constants_keep_their_rank() -> None:
    g = rewritten(
        fold_constants,
        """
        input x: int32[]
        const k: int32[1] = [7]
        a: int32[] = RESHAPE(k) {shape=[]}
        b: int32[] = MAXIMUM(x, a)
        output b
        """,
        "b: int32[] = MAXIMUM(x, a)",
    )
    (constant,) = g.constants()
    assert constant.data is not None and constant.data.shape == constant.shape == ()


def test_constant_that_is_an_output_stays_an_operator() -> None:
    rewritten(
        fold_constants,
        """
        const k: int8[2,3] = [1,2,3,4,5,6]
        a: int8[3,2] = TRANSPOSE(k) {perms=[1,0]}
        output a
        """,
        None,
    )


def test_half_constant_operators_stay() -> None:
    rewritten(
        fold_constants,
        """
        input x: int8[2]
        const k: int8[2] = [1,2]
        a: int8[4] = CONCAT(x, k) {axis=0}
        b: int8[4] = REVERSE(a) {axis=0}
        output b
        """,
        None,
    )


# -- dead operators ----------------------------------------------------------------------------------------------


def test_dead_operators_go_and_inputs_stay() -> None:
    g = rewritten(
        remove_dead,
        """
        input x: int8[2]
        input unused: int8[2]
        a: int8[2] = REVERSE(x) {axis=0}
        b: int8[2] = REVERSE(a) {axis=0}
        c: int8[2] = CLAMP(x) {min=0, max=1}
        output c
        """,
        "c: int8[2] = CLAMP(x) {min=0, max=1}",
    )
    assert [t.name for t in g.inputs] == ["x", "unused"]


def test_live_operators_stay() -> None:
    rewritten(
        remove_dead,
        """
        input x: int8[2]
        a: int8[2] = REVERSE(x) {axis=0}
        b: int8[2] = REVERSE(a) {axis=0}
        output b
        output a
        """,
        None,
    )


# -- padding -----------------------------------------------------------------------------------------------------

CONV = 'CONV2D({x}, w, k) {{pad=[{pad}], stride=[1,1], dilation=[1,1], acc_type="int32", input_zp={zp}, weight_zp=0}}'


def padded_conv(padding: str, const: int = 3, zp: int = 3, shape: str = "1,7,9,1", out: str = "1,5,7,1") -> str:
    return f"""
        input x: int8[1,5,6,1]
        const w: int8[1,3,3,1] = [1,2,3,4,5,6,7,8,9]
        const k: int32[1] = [0]
        p: int8[{shape}] = PAD(x) {{padding=[{padding}], pad_const={const}}}
        y: int32[{out}] = {CONV.format(x="p", pad="0,0,0,0", zp=zp)}
        output y
        """


def test_padding_goes_into_a_convolution() -> None:
    rewritten(
        fold_pads, padded_conv("0,0,1,1,2,1,0,0"), "y: int32[1,5,7,1] = " + CONV.format(x="x", pad="1,1,2,1", zp=3)
    )


def test_padding_adds_to_what_the_convolution_pads() -> None:
    rewritten(
        fold_pads,
        """
        input x: int8[1,5,6,1]
        const w: int8[1,3,3,1] = [1,2,3,4,5,6,7,8,9]
        const k: int32[1] = [0]
        p: int8[1,6,6,1] = PAD(x) {padding=[0,0,1,0,0,0,0,0], pad_const=3}
        y: int32[1,6,6,1] = """
        + CONV.format(x="p", pad="1,1,1,1", zp=3)
        + """
        output y
        """,
        "y: int32[1,6,6,1] = " + CONV.format(x="x", pad="2,1,1,1", zp=3),
    )


def test_padding_with_another_value_stays() -> None:
    rewritten(fold_pads, padded_conv("0,0,1,1,2,1,0,0", const=0), None)


def test_padding_that_is_an_output_stays() -> None:
    rewritten(fold_pads, padded_conv("0,0,1,1,2,1,0,0").replace("output y", "output y\n        output p"), None)


def test_padding_of_batch_or_channels_stays() -> None:
    rewritten(fold_pads, padded_conv("1,0,1,1,2,1,0,0", shape="2,7,9,1", out="2,5,7,1"), None)
    rewritten(
        fold_pads,
        """
        input x: int8[1,5,6,1]
        p: int8[1,5,6,3] = PAD(x) {padding=[0,0,0,0,0,0,1,1], pad_const=-128}
        y: int8[1,4,5,3] = MAX_POOL2D(p) {kernel=[2,2], stride=[1,1], pad=[0,0,0,0]}
        output y
        """,
        None,
    )


def test_padding_with_one_reader_that_cannot_take_it_stays() -> None:
    text = padded_conv("0,0,1,1,2,1,0,0").replace(
        "output y", "z: int8[1,7,9,1] = REVERSE(p) {axis=1}\n        output y\n        output z"
    )
    rewritten(fold_pads, text, None)


def test_padding_goes_into_all_its_readers() -> None:
    again = "z: int32[1,5,7,1] = " + CONV.format(x="p", pad="0,0,0,0", zp=3)
    rewritten(
        fold_pads,
        padded_conv("0,0,1,1,2,1,0,0").replace("output y", again + "\n        output y\n        output z"),
        "\n".join(f"{n}: int32[1,5,7,1] = " + CONV.format(x="x", pad="1,1,2,1", zp=3) for n in "yz"),
    )


POOL = """
    input x: int8[1,6,6,1]
    p: int8[1,{h},6,1] = PAD(x) {{padding=[0,0,{pad},0,0,0,0], pad_const={const}}}
    y: int8[1,{out},4,1] = {kind}(p) {{kernel=[3,3], stride=[1,1], pad=[0,0,0,0]{more}}}
    output y
    """


def test_padding_with_the_lowest_value_goes_into_max_pool() -> None:
    rewritten(
        fold_pads,
        POOL.format(h=9, out=7, pad="1,2", const=-128, kind="MAX_POOL2D", more=""),
        "y: int8[1,7,4,1] = MAX_POOL2D(x) {kernel=[3,3], stride=[1,1], pad=[1,2,0,0]}",
    )


@pytest.mark.parametrize(
    "h,out,pad,const,kind,more",
    [
        (9, 7, "1,2", -127, "MAX_POOL2D", ""),  # the padding could win
        (10, 8, "1,3", -128, "MAX_POOL2D", ""),  # as large as the kernel
        (
            9,
            7,
            "1,2",
            -128,
            "AVG_POOL2D",
            ', acc_type="int32", input_zp=-128, output_zp=-128',
        ),  # its own padding does not count
    ],
)
def test_padding_in_front_of_pools_stays(h: int, out: int, pad: str, const: int, kind: str, more: str) -> None:
    rewritten(fold_pads, POOL.format(h=h, out=out, pad=pad, const=const, kind=kind, more=more), None)


# -- rescales ----------------------------------------------------------------------------------------------------


def rescaled(attrs: str, dtype: str = "int8") -> str:
    return f"""
        input x: int8[4]
        a: {dtype}[4] = RESCALE(x) {attrs}
        b: {dtype}[4] = REVERSE(a) {{axis=0}}
        output b
        """


def test_rescale_by_one_goes() -> None:
    rewritten(fuse_rescales, rescaled(rescale(zp=5, ozp=5)), "b: int8[4] = REVERSE(x) {axis=0}")


@pytest.mark.parametrize(
    "attrs,dtype",
    [
        (rescale(zp=5, ozp=6), "int8"),
        (rescale(shift=31), "int8"),
        (rescale(mult=(1 << 30) + 1), "int8"),
        (rescale("int32"), "int32"),
    ],
    ids=["zero point", "factor", "factor by a bit", "type"],
)
def test_other_rescales_stay(attrs: str, dtype: str) -> None:
    rewritten(fuse_rescales, rescaled(attrs, dtype), None)


def test_rescale_by_one_that_is_an_output_stays() -> None:
    rewritten(
        fuse_rescales,
        f"""
        input x: int8[4]
        a: int8[4] = RESCALE(x) {rescale()}
        output a
        """,
        None,
    )


# -- reshapes ----------------------------------------------------------------------------------------------------


def test_reshape_of_reshape() -> None:
    rewritten(
        merge_reshapes,
        """
        input x: int8[4,3]
        a: int8[12] = RESHAPE(x) {shape=[12]}
        b: int8[2,6] = RESHAPE(a) {shape=[2,6]}
        output b
        """,
        "b: int8[2,6] = RESHAPE(x) {shape=[2,6]}",
    )


def test_reshape_there_and_back_goes() -> None:
    rewritten(
        merge_reshapes,
        """
        input x: int8[4,3]
        a: int8[12] = RESHAPE(x) {shape=[12]}
        b: int8[4,3] = RESHAPE(a) {shape=[4,3]}
        c: int8[4,3] = REVERSE(b) {axis=0}
        output c
        """,
        "c: int8[4,3] = REVERSE(x) {axis=0}",
    )


def test_reshape_to_its_own_shape_goes() -> None:
    rewritten(
        merge_reshapes,
        """
        input x: int8[4,3]
        b: int8[4,3] = RESHAPE(x) {shape=[4,3]}
        c: int8[4,3] = REVERSE(b) {axis=0}
        output c
        """,
        "c: int8[4,3] = REVERSE(x) {axis=0}",
    )


def test_reshape_that_is_an_output_stays() -> None:
    rewritten(
        merge_reshapes,
        """
        input x: int8[4,3]
        b: int8[4,3] = RESHAPE(x) {shape=[4,3]}
        output b
        """,
        None,
    )


def test_reshape_between_others_stays() -> None:
    rewritten(
        merge_reshapes,
        """
        input x: int8[4,3]
        a: int8[4,3] = REVERSE(x) {axis=0}
        b: int8[12] = RESHAPE(a) {shape=[12]}
        c: int8[12] = REVERSE(b) {axis=0}
        output c
        """,
        None,
    )


# -- tables ------------------------------------------------------------------------------------------------------


def tables(first: Op, readers: int = 1, output: bool = False, dtype: DType = DType.INT8) -> tuple[Graph, np.ndarray]:
    """``first`` and a random table behind it, and that table."""
    x, a = first.inputs[0], first.outputs[0]
    values = np.random.default_rng(0).integers(-128, 128, 256).astype(np.int8)
    g = Graph("g", [x], [], [first])
    for i in range(readers):
        y = Tensor(f"y{i}", a.shape, dtype)
        g.ops.append(Op("TABLE", [a, Tensor(f"k{i}", (256,), DType.INT8, values)], [y]))
        g.outputs.append(y)
    if output:
        g.outputs.append(a)
    verify(g)
    return g, values


def first_operator(kind: str) -> tuple[Op, np.ndarray]:
    """An operator on int8 [4] and its result for each code."""
    x, a, codes = Tensor("x", (4,), DType.INT8), Tensor("a", (4,), DType.INT8), np.arange(-128, 128)
    if kind == "TABLE":
        values = np.random.default_rng(1).integers(-128, 128, 256).astype(np.int8)
        return Op("TABLE", [x, Tensor("k", (256,), DType.INT8, values)], [a]), values.astype(int)
    if kind == "CLAMP":
        return Op("CLAMP", [x], [a], {"min": -7, "max": 99}), np.clip(codes, -7, 99)
    attrs = dict(
        multiplier=(1518500250,),
        shift=(31,),
        input_zp=-3,
        output_zp=11,
        scale32=True,
        rounding="single",
        per_channel=False,
        input_unsigned=False,
        output_unsigned=False,
        out_dtype="int8",
    )
    scaled = [((int(c) + 3) * 1518500250 + (1 << 30) >> 31) + 11 for c in codes]
    return Op("RESCALE", [x], [a], attrs), np.clip(scaled, -128, 127)


@pytest.mark.parametrize("kind", ["TABLE", "CLAMP", "RESCALE"])
def test_table_behind_a_function_of_one_variable(kind: str) -> None:
    first, inner = first_operator(kind)
    g, outer = tables(first)
    assert compose_tables(g)
    remove_dead(g)
    verify(g)
    (op,) = g.ops
    assert op.kind == "TABLE" and op.inputs[0].name == "x" and op.output.name == "y0"
    assert np.array_equal(op.inputs[1].data, outer[inner + 128])


@pytest.mark.parametrize("kind", ["TABLE", "CLAMP", "RESCALE"])
@pytest.mark.parametrize("how", [{"readers": 2}, {"output": True}], ids=["two readers", "output"])
def test_tables_with_another_reader_stay(kind: str, how: dict) -> None:
    g, _ = tables(first_operator(kind)[0], **how)
    assert not compose_tables(g)


def test_three_tables_are_one() -> None:
    first, inner = first_operator("TABLE")
    g, outer = tables(first)
    last = Op("TABLE", [g.outputs[0], g.ops[1].inputs[1]], [Tensor("z", (4,), DType.INT8)])  # the same constant again
    g.ops.append(last)
    g.outputs = [last.output]
    optimize(g)
    verify(g)
    assert len(g.ops) == 1
    assert np.array_equal(g.ops[0].inputs[1].data, outer[outer[inner + 128].astype(int) + 128])


def test_one_constant_of_two_composed_tables() -> None:
    """The composed tables are two constants with two names."""
    x = Tensor("x", (4,), DType.INT8)
    shared = Tensor("k", (256,), DType.INT8, np.arange(256).astype(np.int8))
    g = Graph("g", [x])
    for i in range(2):
        a, y = Tensor(f"a{i}", (4,), DType.INT8), Tensor(f"y{i}", (4,), DType.INT8)
        g.ops += [Op("CLAMP", [x], [a], {"min": i, "max": 9}), Op("TABLE", [a, shared], [y])]
        g.outputs.append(y)
    assert compose_tables(g)
    remove_dead(g)
    verify(g)
    assert len(g.ops) == 2 and len({t.name for t in g.constants()}) == 2


def test_tables_of_16_bits_stay() -> None:
    x, a = (Tensor(n, (4,), DType.INT16) for n in "xa")
    k = Tensor("k", (513,), DType.INT16, np.zeros(513, np.int16))
    g = Graph("g", [x], [], [Op("CLAMP", [x], [a], {"min": 0, "max": 9})])
    y = Tensor("y", (4,), DType.INT32)
    g.ops.append(Op("TABLE", [a, k], [y]))
    g.outputs = [y]
    verify(g)
    assert not compose_tables(g)


# -- transposes --------------------------------------------------------------------------------------------------


def test_transpose_of_transpose() -> None:
    rewritten(
        cancel_transposes,
        """
        input x: int8[2,3,4]
        a: int8[3,4,2] = TRANSPOSE(x) {perms=[1,2,0]}
        b: int8[4,3,2] = TRANSPOSE(a) {perms=[1,0,2]}
        output b
        """,
        "b: int8[4,3,2] = TRANSPOSE(x) {perms=[2,1,0]}",
    )


def test_transpose_there_and_back_goes() -> None:
    rewritten(
        cancel_transposes,
        """
        input x: int8[2,3,4]
        a: int8[3,4,2] = TRANSPOSE(x) {perms=[1,2,0]}
        b: int8[2,3,4] = TRANSPOSE(a) {perms=[2,0,1]}
        c: int8[2,3,4] = REVERSE(b) {axis=1}
        output c
        """,
        "c: int8[2,3,4] = REVERSE(x) {axis=1}",
    )


def test_transpose_there_and_back_to_an_output_is_an_identity() -> None:
    rewritten(
        cancel_transposes,
        """
        input x: int8[2,3,4]
        a: int8[3,4,2] = TRANSPOSE(x) {perms=[1,2,0]}
        b: int8[2,3,4] = TRANSPOSE(a) {perms=[2,0,1]}
        output b
        """,
        "b: int8[2,3,4] = IDENTITY(x)",
    )


def test_one_transpose_stays() -> None:
    rewritten(
        cancel_transposes,
        """
        input x: int8[2,3,4]
        a: int8[3,4,2] = TRANSPOSE(x) {perms=[1,2,0]}
        b: int8[3,4,2] = REVERSE(a) {axis=0}
        c: int8[4,3,2] = TRANSPOSE(b) {perms=[1,0,2]}
        output c
        """,
        None,
    )


# -- slices ------------------------------------------------------------------------------------------------------


def test_slice_of_slice_is_one() -> None:
    rewritten(
        merge_slices,
        """
        input x: int8[6,9]
        a: int8[4,9] = SLICE(x) {start=[1,0], size=[4,9]}
        b: int8[2,5] = SLICE(a) {start=[2,3], size=[2,5]}
        output b
        """,
        "b: int8[2,5] = SLICE(x) {start=[3,3], size=[2,5]}",
    )


CONV_ATTRS = 'stride=[1,2], dilation=[1,3], acc_type="int32", input_zp=0, weight_zp=0'


def crop(pad: str, width: int, box: str, more: str = "", reader: str = "c") -> str:
    """A convolution of [1,5,12,4] with a kernel of 2 x 3, its rescale, ``more`` and a slice of ``reader``."""
    return f"""
        input x: int8[1,5,12,4]
        const w: int8[8,2,3,4] = [{",".join(["1"] * 192)}]
        const b: int32[8] = [1,2,3,4,5,6,7,8]
        a: int32[1,5,{width},8] = CONV2D(x, w, b) {{pad={pad}, {CONV_ATTRS}}}
        c: int8[1,5,{width},8] = RESCALE(a) {rescale()}
        {more}
        y: {box}
        output y
    """


def test_crop_is_less_padding() -> None:
    """Columns 1 to 7 of 9: one step of two columns less at the left, one at the right."""
    rewritten(
        fold_crops,
        crop("[1,0,6,5]", 9, "int8[1,4,7,8] = SLICE(c) {start=[0,1,1,0], size=[1,4,7,8]}"),
        f"""
        a: int32[1,4,7,8] = CONV2D(x, w, b) {{pad=[0,0,4,3], {CONV_ATTRS}}}
        y: int8[1,4,7,8] = RESCALE(a) {rescale()}
        """,
    )


def test_crop_is_seen_through_views_and_pointwise_operators() -> None:
    more = """d: int8[5,9,8] = RESHAPE(c) {shape=[5,9,8]}
        e: int8[5,9,8] = CLAMP(d) {min=0, max=7}"""
    rewritten(
        fold_crops,
        crop("[1,0,6,5]", 9, "int8[5,8,8] = SLICE(e) {start=[0,0,0], size=[5,8,8]}", more),
        f"""
        a: int32[1,5,8,8] = CONV2D(x, w, b) {{pad=[1,0,6,3], {CONV_ATTRS}}}
        c: int8[1,5,8,8] = RESCALE(a) {rescale()}
        d: int8[5,8,8] = RESHAPE(c) {{shape=[5,8,8]}}
        y: int8[5,8,8] = CLAMP(d) {{min=0, max=7}}
        """,
    )


def test_crop_of_whole_lines_is_seen_through_joined_axes() -> None:
    more = "d: int8[1,45,8] = RESHAPE(c) {shape=[1,45,8]}"
    rewritten(
        fold_crops,
        crop("[1,0,6,5]", 9, "int8[1,36,8] = SLICE(d) {start=[0,9,0], size=[1,36,8]}", more),
        f"""
        a: int32[1,4,9,8] = CONV2D(x, w, b) {{pad=[0,0,6,5], {CONV_ATTRS}}}
        c: int8[1,4,9,8] = RESCALE(a) {rescale()}
        y: int8[1,36,8] = RESHAPE(c) {{shape=[1,36,8]}}
        """,
    )


@pytest.mark.parametrize(
    ("box", "more", "output"),
    [
        ("int8[1,5,5,8] = SLICE(c) {start=[0,0,4,0], size=[1,5,5,8]}", "", ""),  # more than the padding
        ("int8[1,5,9,6] = SLICE(c) {start=[0,0,0,1], size=[1,5,9,6]}", "", ""),  # channels
        ("int8[1,5,8,8] = SLICE(c) {start=[0,0,0,0], size=[1,5,8,8]}", "", "c"),  # the whole is needed too
        ("int8[1,5,8,8] = SLICE(c) {start=[0,0,0,0], size=[1,5,8,8]}", "z: int8[1,5,9,8] = REVERSE(c) {axis=1}", "z"),
        ("int8[40,8] = SLICE(d) {start=[0,0], size=[40,8]}", "d: int8[45,8] = RESHAPE(c) {shape=[45,8]}", ""),
        ("int8[36,8] = SLICE(d) {start=[4,0], size=[36,8]}", "d: int8[45,8] = RESHAPE(c) {shape=[45,8]}", ""),
        ("int8[5,60] = SLICE(d) {start=[0,0], size=[5,60]}", "d: int8[5,72] = RESHAPE(c) {shape=[5,72]}", ""),
    ],
)
def test_other_slices_stay(box: str, more: str, output: str) -> None:
    text = crop("[1,0,6,5]", 9, box, more)
    rewritten(fold_crops, text + (f"    output {output}\n" if output else ""), None)


# -- all of them -------------------------------------------------------------------------------------------------


def test_optimize_runs_until_nothing_changes() -> None:
    g = graph(f"""
        input x: int8[4,3]
        const k: int8[3,1] = [1,2,3]
        a: int8[3,4] = TRANSPOSE(x) {{perms=[1,0]}}
        b: int8[3,4] = RESCALE(a) {rescale(zp=2, ozp=2)}
        c: int8[4,3] = TRANSPOSE(b) {{perms=[1,0]}}
        d: int8[1,3] = TRANSPOSE(k) {{perms=[1,0]}}
        e: int8[12] = RESHAPE(c) {{shape=[12]}}
        f: int8[4,3] = RESHAPE(e) {{shape=[4,3]}}
        h: int8[5,3] = CONCAT(f, d) {{axis=0}}
        i: int8[5,3] = CLAMP(h) {{min=-128, max=127}}
        j: int8[5,3] = CLAMP(i) {{min=0, max=127}}
        output j
        """)
    assert optimize(g) is g
    verify(g)
    assert body(g) == "h: int8[5,3] = CONCAT(x, d) {axis=0}\nj: int8[5,3] = CLAMP(h) {min=0, max=127}"


def test_optimize_leaves_the_inputs() -> None:
    g = graph("""
        input x: int8[2]
        input y: int8[2]
        a: int8[2] = REVERSE(y) {axis=0}
        b: int8[2] = REVERSE(x) {axis=0}
        output b
        """)
    assert [t.name for t in optimize(g).inputs] == ["x", "y"]
