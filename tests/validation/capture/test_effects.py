"""What a step leaves behind: updates that wait for their readers, and gradients as autograd's."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from made_programs import call, tensor  # noqa: E402
from schedsim.validation.capture.effects import (  # noqa: E402
    _dense,
    add_gradients,
    add_updates,
    insert_all,
    laid_out,
    order_draws,
)
from schedsim.validation.capture.program import Call, Program, Ref  # noqa: E402

aten = torch.ops.aten


def names(program: Program) -> list[str]:
    return [one.name for one in program.calls]


def named(program: Program, name: str) -> Call:
    return next(one for one in program.calls if one.name == name)


def line(num: int = 3) -> Program:
    """x -> op0 -> op1 -> ..., forward; the seed behind them."""
    program = Program()
    value = tensor(program, kind="input")
    program.inputs[0] = value
    for i in range(num):
        new = tensor(program)
        call(program, f"op{i}", aten.sin.default, (Ref(value),), new)
        value = new
    program.seed = len(program.calls)
    call(program, "seed", torch.ones_like, (Ref(value),), tensor(program), phase="backward")
    return program


def test_inserted_calls_keep_all_numbers_right():
    """At the front, twice in one place, and at the end: who makes what still holds."""
    program = line()
    program.calls[2].tokens = (0,)
    before = {one.name: list(one.outputs) for one in program.calls}
    fresh = [tensor(program) for _ in range(4)]
    places = [(0, "first"), (2, "left"), (2, "right"), (4, "last")]
    inserted = [
        (at, Call(name, aten.cos.default, (), {}, outputs=[value]))
        for (at, name), value in zip(places, fresh, strict=True)
    ]
    insert_all(program, inserted)
    assert names(program) == ["first", "op0", "op1", "left", "right", "op2", "seed", "last"]
    assert program.seed == 6
    assert named(program, "op2").tokens == (1,)
    for i, one in enumerate(program.calls):
        for position, value in enumerate(one.outputs):
            assert program.values[value].call == i
            assert program.values[value].position == position
        if one.name in before:
            assert one.outputs == before[one.name]


def test_an_update_waits_for_all_who_read_the_old_value():
    """They cannot run again; the update runs once, behind the last of them and its own maker."""
    program = line()
    statistics = tensor(program, (8,), kind="static")
    program.buffers["norm.mean"] = statistics
    program.calls[0].args = (Ref(0), Ref(statistics))
    new = tensor(program, (8,))
    call(program, "new", aten.add.Tensor, (Ref(statistics), 1.0), new, phase="backward")
    add_updates(program, [(statistics, new)])
    update = named(program, "norm.mean.update")
    assert names(program)[-1] == "norm.mean.update"
    assert update.once
    assert update.target is aten.copy_.default
    assert [named(program, name).once for name in ("op0", "op1", "new")] == [True, False, True]
    assert update.tokens == (0,)  # its maker is read anyway


def test_a_repeat_that_reads_no_statistics_may_run_again():
    """As a batch norm in its lean form; the first run still comes before the update."""
    program = line()
    statistics = tensor(program, (8,), kind="static")
    program.calls[1].args = (Ref(1), Ref(statistics))
    program.calls[1].lean = (aten.sin.default, (Ref(1),))
    new = tensor(program, (8,))
    call(program, "new", aten.cos.default, (Ref(1),), new)
    add_updates(program, [(statistics, new)])
    assert not program.calls[1].once
    assert names(program).index("input.update") > 1


def test_random_ops_that_no_data_orders_wait_for_each_other():
    """On parallel branches; in a line, the data orders them already."""
    program = line()
    program.calls[0].random = program.calls[2].random = True
    order_draws(program)
    assert all(one.tokens == () for one in program.calls)
    branch = tensor(program)
    call(program, "branch", aten.sin.default, (Ref(0),), branch, random=True)
    order_draws(program)
    assert program.calls[-1].tokens == (2,)
    order_draws(program)  # it waits already
    assert program.calls[-1].tokens == (2,)


def with_gradients(*parts_of: tuple[str, int], stride=None) -> tuple[Program, dict]:
    """A step with one parameter of 4 x 8, and so many backward calls that give its gradient."""
    program = line(1)
    weight = tensor(program, kind="static")
    program.parameters["w"] = weight
    parts = []
    for i in range(parts_of[0][1]):
        value = tensor(program, stride=stride)
        call(program, f"part{i}", aten.sin.default, (Ref(1),), value, phase="backward")
        parts.append(value)
    return program, {"w": parts}


def test_one_gradient_is_taken_over_as_it_is():
    """Dense like its parameter, and held by nobody else: no op is added."""
    program, parts = with_gradients(("w", 1))
    add_gradients(program, parts)
    assert program.gradients["w"] == parts["w"][0]
    assert names(program) == ["op0", "seed", "part0"]


def test_several_gradients_are_summed_in_the_order_in_which_they_are_made():
    """Each sum right behind its later part."""
    program, parts = with_gradients(("w", 3))
    add_gradients(program, {"w": parts["w"][::-1]})
    assert names(program) == ["op0", "seed", "part0", "part1", "w.sum", "part2", "w.sum"]
    sums = [one for one in program.calls if one.name == "w.sum"]
    assert all(one.is_gradient_sum and one.phase == "backward" for one in sums)
    assert sums[0].args == (Ref(parts["w"][0]), Ref(parts["w"][1]))
    assert sums[1].args == (Ref(sums[0].outputs[0]), Ref(parts["w"][2]))
    assert program.gradients["w"] == sums[1].outputs[0]
    made = program.values[program.gradients["w"]]
    assert (program.calls[made.call], made.shape, made.stride) == (sums[1], (4, 8), (8, 1))


def test_what_autograd_would_copy_is_copied():
    """Another layout; a gradient that is given from outside; one that two parameters share."""
    program, parts = with_gradients(("w", 1), stride=(1, 4))
    add_gradients(program, parts)
    assert names(program)[-1] == "w.lay_out"
    assert program.values[program.gradients["w"]].stride == (8, 1)
    program, parts = with_gradients(("w", 1))
    program.tangents = list(parts["w"])
    add_gradients(program, parts)
    assert names(program)[-1] == "w.lay_out"
    program, parts = with_gradients(("w", 1))
    program.parameters["v"] = tensor(program, kind="static")
    add_gradients(program, {"w": parts["w"], "v": parts["w"]})
    assert program.gradients["w"] == parts["w"][0]
    assert names(program)[-1] == "v.lay_out"


def test_a_sum_is_laid_out_as_its_first_part():
    """Dense, in the order of its dimensions, as elementwise results are."""
    for shape, order in (((4, 8), (0, 1)), ((4, 8), (1, 0)), ((2, 3, 5), (2, 0, 1))):
        like = torch.empty([shape[d] for d in order]).permute(
            [order.index(d) for d in range(len(shape))]
        )
        program = Program()
        value = tensor(program, tuple(like.shape), stride=tuple(like.stride()))
        assert _dense(program.values[value]) == (like + like).stride()


def test_laying_out_copies_the_numbers():
    """Into the strides that are asked for."""
    gradient = torch.arange(6.0).reshape(2, 3)
    found = laid_out(gradient, (2, 3), (1, 2))
    assert found.stride() == (1, 2)
    assert torch.equal(found, gradient)
    assert found.data_ptr() != gradient.data_ptr()
