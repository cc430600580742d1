"""The memory plan: tensors that are needed at the same time must not share bytes, also around jumps."""

from __future__ import annotations

import pte_samples
import pytest

from arm_lower.pte.lifetimes import clashes, effects, split_outs
from arm_lower.pte.model import AtRuntime, DelegateSpec, MethodBuilder, Planned, ProgramBuilder, ScalarType

F32 = ScalarType.FLOAT32


class Chain:
    """A method of float32[4] tensors (16 bytes) in one arena."""

    def __init__(self) -> None:
        self.program = ProgramBuilder()
        self.m: MethodBuilder = self.program.method("forward")
        self.x = self.m.add_tensor(F32, (4,), AtRuntime())
        self.m.add_input(self.x)

    def at(self, offset: int, memory_id: int = 1, initial: bytes | None = None) -> int:
        state = None if initial is None else self.program.initial_state(initial)
        return self.m.add_tensor(F32, (4,), Planned(offset, memory_id, state))

    def neg(self, source: int, target: int) -> int:
        return self.m.kernel("aten::neg", "out", source, target, target)

    def add(self, a: int, b: int, target: int) -> int:
        return self.m.kernel("aten::add", "out", a, b, self.m.add_int(1), target, target)

    def copy_in_place(self, target: int, source: int) -> int:
        return self.m.kernel("aten::copy_", "", target, source, self.m.add_bool(False), target)

    def clashes(self, *outputs: int) -> list[str]:
        for output in outputs:
            self.m.add_output(output)
        return clashes(self.m.build())


def test_reuse_after_the_last_use_is_right() -> None:
    c = Chain()
    a, b, d = c.at(0), c.at(16), c.at(0)
    c.neg(c.x, a)
    c.neg(a, b)
    c.neg(b, d)
    assert c.clashes(d) == []


def test_write_over_what_is_read_later() -> None:
    c = Chain()
    a, b, d, e = c.at(0), c.at(16), c.at(0), c.at(32)
    c.neg(c.x, a)
    c.neg(a, b)
    c.neg(b, d)
    c.add(a, d, e)
    found = c.clashes(e)
    assert found == [
        f"instruction 2: writing value {d} (float32[4] at 0..16 of arena 1) destroys value {a} (float32[4] at 0..16 of"
        " arena 1), which is still needed"
    ]


def test_write_over_own_operand() -> None:
    c = Chain()
    a, b = c.at(0), c.at(0)
    c.neg(c.x, a)
    c.neg(a, b)
    assert len(c.clashes(b)) == 1


def test_partial_overlap_counts() -> None:
    c = Chain()
    a, b = c.at(0), c.m.add_tensor(F32, (8,), Planned(0))
    c.neg(c.x, a)
    c.m.kernel("aten::full", "out", c.m.add_int_list((8,)), c.m.add_int(0), b, b)
    assert len(c.clashes(a, b)) == 1


def test_arenas_are_apart() -> None:
    c = Chain()
    a, b = c.at(0), c.at(0, memory_id=2)
    c.neg(c.x, a)
    c.neg(a, b)
    assert c.clashes(a, b) == []


def test_outputs_live_to_the_end() -> None:
    c = Chain()
    a, b = c.at(0), c.at(0)
    c.neg(c.x, a)
    c.neg(c.x, b)
    assert len(c.clashes(a, b)) == 1


def test_unused_result_still_destroys() -> None:
    c = Chain()
    a, unused = c.at(0), c.at(0)
    c.neg(c.x, a)
    c.neg(c.x, unused)
    assert len(c.clashes(a)) == 1


def test_two_outs_of_one_kernel() -> None:
    c = Chain()
    a, b = c.at(0), c.at(0)
    both = c.m.add_tensor_list((a, b))
    c.m.kernel("aten::max", "dim_max", c.x, c.m.add_int(0), c.m.add_bool(False), a, b, both)
    assert len(c.clashes(a)) == 2


def test_inputs_are_all_set_first() -> None:
    c = Chain()
    p, q, out = c.at(0), c.at(0), c.at(16)
    c.m.add_input(p)
    c.m.add_input(q)
    c.neg(p, out)
    found = c.clashes(out)
    assert found and all(text.startswith("setting the inputs: ") for text in found)


def test_state_lives_always() -> None:
    c = Chain()
    state, scratch = c.at(0, initial=bytes(16)), c.at(0)
    c.copy_in_place(state, c.x)
    c.neg(c.x, scratch)
    found = c.clashes(scratch)
    assert any(f"instruction 1: writing value {scratch}" in text for text in found)


def test_buffer_without_initial_state_is_a_state() -> None:
    """ExecuTorch's default: read first, written at the end, kept until the next execution."""
    c = Chain()
    state, total, other = c.at(0), c.at(16), c.at(0)
    c.add(c.x, state, total)
    c.copy_in_place(state, total)
    c.neg(total, other)
    found = c.clashes(other)
    assert any(f"writing value {other}" in text and f"destroys value {state}" in text for text in found)


def test_read_of_nothing() -> None:
    c = Chain()
    a, b = c.at(0), c.at(16)
    c.neg(a, b)
    assert c.clashes(b) == [f"value {a} (float32[4] at 0..16 of arena 1) is read, but nothing writes it before"]


def test_both_branches_write() -> None:
    assert clashes(pte_samples.branches().program.methods[0]) == []


def test_branch_that_destroys() -> None:
    c = Chain()
    a, b, out = c.at(0), c.at(0), c.at(16)
    flag = c.m.new_bool(True)
    c.neg(c.x, a)
    jump = c.m.jump_false(flag)
    c.neg(c.x, b)
    c.m.set_destination(jump)
    c.neg(a, out)
    assert len(c.clashes(out)) == 1


def test_branch_that_leaves_may_reuse() -> None:
    c = Chain()
    a, b = c.at(0), c.at(0)
    out = c.m.add_tensor(F32, (4,), AtRuntime())
    jump = c.m.jump_false(c.m.new_bool(True))
    c.neg(c.x, a)
    c.neg(a, out)
    leave = c.m.jump_false(c.m.add_bool(False))
    c.m.set_destination(jump)
    c.neg(c.x, b)
    c.neg(b, out)
    c.m.set_destination(leave)
    assert c.clashes(out) == []


def test_loop_keeps_what_the_next_round_reads() -> None:
    c = Chain()
    kept, scratch, out = c.at(0), c.at(0), c.at(16)
    c.neg(c.x, kept)
    top = c.neg(kept, out)
    c.neg(out, scratch)  # After the last read of `kept` in this round, but before that of the next.
    c.m.jump_false(c.m.new_bool(), top)
    found = c.clashes(out)
    assert any(f"writing value {scratch}" in text and f"destroys value {kept}" in text for text in found)


def test_view_keeps_its_base() -> None:
    c = Chain()
    a, other, out = c.at(0), c.at(0), c.at(16)
    view = c.m.add_tensor(F32, (2, 2), Planned(0))
    c.neg(c.x, a)
    c.m.kernel("executorch_prim::et_view", "default", a, c.m.add_int_list((2, 2)), view)
    c.neg(c.x, other)
    c.neg(view, out)
    found = c.clashes(out)
    assert len(found) == 1 and f"writing value {other}" in found[0]


def test_view_without_instruction() -> None:
    c = Chain()
    a, out = c.at(0), c.at(16)
    view = c.m.add_tensor(F32, (2, 2), Planned(0))
    c.neg(c.x, a)
    c.neg(view, out)
    assert c.clashes(out) == []


def test_view_without_instruction_of_the_wrong_place() -> None:
    c = Chain()
    a, out = c.at(0), c.at(16)
    view = c.m.add_tensor(F32, (2,), Planned(0))
    c.neg(c.x, a)
    c.neg(view, out)
    assert "is read, but nothing writes it before" in c.clashes(out)[0]


def test_move_shares_memory() -> None:
    c = Chain()
    a, slot, other, out = c.at(0), c.m.add_tensor(F32, (4,), AtRuntime()), c.at(0), c.at(16)
    c.neg(c.x, a)
    c.m.move(a, slot)
    c.neg(c.x, other)
    c.neg(slot, out)
    assert len(c.clashes(out)) == 1


def test_delegate_of_another_backend() -> None:
    """Only the backend knows its outputs: what has no value yet is one."""
    c = Chain()
    a, b, d = c.at(0), c.at(16), c.at(16)
    c.neg(c.x, a)
    c.m.delegate_call(c.m.add_delegate(DelegateSpec("X", b"data")), a, b)
    c.neg(a, d)
    assert len(c.clashes(b, d)) == 1
    effect = effects(c.m.build())[1]
    assert (effect.reads, effect.writes) == ((a,), (b,))


def test_ethosu_delegate_knows_its_outputs() -> None:
    method = pte_samples.delegated().program.methods[0]
    effect = effects(method)[1]
    assert (effect.reads, effect.writes) == ((1,), (2,))


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((0, 2, 2), ((0,), (2,))),
        ((1, 0, 1), ((1, 0), (1,))),
        ((0, 1, 2, 3), ((0,), (1, 2))),
        ((0, 3, 3), ((0,), (1, 2))),
        ((0, 4), ((0,), ())),
        ((0, 2), None),
        ((0, 2, 1, 3), None),
        ((), None),
    ],
)
def test_split_outs(args: tuple[int, ...], expected: object) -> None:
    m = ProgramBuilder().method("forward")
    tensors = [m.add_tensor(F32, (1,), AtRuntime()) for _ in range(3)]
    m.add_tensor_list(tensors[1:])
    m.new_int()
    assert split_outs(m.build(), args) == expected
