"""A schedule as source: what runs when, what is freed where, and who replays random numbers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from made_programs import call, tensor  # noqa: E402
from schedsim.validation.capture.program import Program, Ref  # noqa: E402
from schedsim.validation.op_level.emit import emit  # noqa: E402

aten = torch.ops.aten
STORE_ALL = [0, 1, 2, 3, 4, 5]
RECOMPUTED = [0, 1, 2, 3, 0, 4, 5]


def step(**first) -> Program:
    """x -> y = sin -> z = cos -> loss = sum; given a gradient, g = it times y, d = g times x."""
    program = Program()
    x = tensor(program, (3,), kind="input")
    y, z, loss = (tensor(program, shape) for shape in ((3,), (3,), ()))
    call(program, "y", aten.sin.default, (Ref(x),), y, **first)
    call(program, "z", aten.cos.default, (Ref(y),), z)
    call(program, "loss", aten.sum.default, (Ref(z),), loss, phase="loss")
    given = tensor(program, (), kind="tangent")
    program.seed = 3
    call(program, "seed", torch.ones_like, (Ref(loss),), given, phase="backward", once=True)
    g, d = tensor(program, (3,)), tensor(program, (3,))
    call(program, "g", aten.mul.Tensor, (Ref(given), Ref(y)), g, phase="backward")
    call(program, "d", aten.mul.Tensor, (Ref(g), Ref(x)), d, phase="backward")
    program.inputs[0], program.outputs, program.tangents = x, [loss], [given]
    program.input_gradients[0] = d
    return program


def run(halves, x, *, random=None, hook=None):
    """(loss, gradient, counts, what was carried)."""
    counts = [0] * 6
    outputs, carried = halves.forward.function([x], counts, random, hook)
    kept = list(carried)
    given = [torch.tensor(2.0)]
    found = halves.backward.function([x], carried, given, counts, random, hook)
    assert carried == given == []
    return outputs[0], found[0], counts, kept


@pytest.mark.parametrize("runs", [STORE_ALL, RECOMPUTED])
def test_both_halves_compute_what_the_calls_say(runs):
    """However often they run; runs are counted, of both halves."""
    x = torch.tensor([1.0, 2.0, 3.0])
    loss, gradient, counts, _ = run(emit(step(), runs), x)
    torch.testing.assert_close(loss, x.sin().cos().sum())
    torch.testing.assert_close(gradient, 2 * x.sin() * x)
    assert counts == [runs.count(op) for op in range(6)]


def test_what_the_backward_half_reads_is_carried_and_nothing_else():
    """y where it is kept; nothing where it is made again."""
    x = torch.tensor([1.0, 2.0, 3.0])
    kept, again = emit(step(), STORE_ALL), emit(step(), RECOMPUTED)
    assert kept.carried == (1,)
    torch.testing.assert_close(run(kept, x)[3], [x.sin()])
    assert again.carried == ()
    assert run(again, x)[3] == []


def test_a_tensor_is_freed_right_after_the_run_that_reads_it_last():
    """Line by line: y behind z where it is recomputed, z behind the loss, g behind d."""
    lines = [line.strip() for line in emit(step(), RECOMPUTED).forward.source.splitlines()]
    at = {
        name: k
        for k, line in enumerate(lines)
        for name in ("v1", "v2", "v3")
        if f"{name} =" in line
    }
    assert lines[at["v2"] + 1] == "del v1"
    assert lines[at["v3"] + 1] == "del v2"
    kept = emit(step(), STORE_ALL).forward.source
    assert "del v1" not in kept
    backward = [line.strip() for line in emit(step(), RECOMPUTED).backward.source.splitlines()]
    behind = next(k for k, line in enumerate(backward) if line.startswith("v6 ="))
    assert backward[behind + 1] == "del v5"
    assert "del v1, v4" in backward or "del v4, v1" in backward


def test_a_hook_is_told_every_run_before_it_starts():
    """By its place in the schedule, over both halves; else there is no call of it."""
    seen = []
    run(emit(step(), RECOMPUTED, observed=True), torch.ones(3), hook=seen.append)
    assert seen == list(range(7))
    assert "hook(" not in emit(step(), RECOMPUTED).forward.source.split("\n", 1)[1]


class Noting:
    """In the place of the replay of random numbers."""

    def __init__(self) -> None:
        self.calls = []

    def __getattr__(self, how):
        def called(slot, function, *args, **kwargs):
            self.calls.append((how, slot))
            return function(*args, **kwargs)

        return called


def test_repeats_of_random_ops_are_replayed():
    """The first notes the state, the last forgets it; one that runs once is left alone."""
    random = Noting()
    halves = emit(step(random=True), [0, 1, 2, 3, 0, 0, 4, 5])
    run(halves, torch.ones(3), random=random)
    assert random.calls == [("first", 0), ("again", 0), ("last", 0)]
    assert halves.repeated_random == (0,)
    assert halves.carried_states == (0,)
    once = emit(step(random=True), STORE_ALL)
    assert (once.repeated_random, once.most_states) == ((), 0)
    run(once, torch.ones(3))


def test_a_sum_overwrites_its_part_only_in_the_run_that_reads_it_last():
    """And not at all where that is not asked for."""
    program = step()
    program.calls[5].takes_over, program.calls[5].overwriting = 5, aten.mul_.Tensor
    x = torch.tensor([1.0, 2.0, 3.0])
    for in_place in (True, False):
        halves = emit(program, STORE_ALL, in_place=in_place)
        torch.testing.assert_close(run(halves, x)[1], 2 * x.sin() * x)
        bound = halves.backward.function.__globals__.values()
        assert (aten.mul_.Tensor in list(bound)) == in_place


def test_optional_outputs_are_left_out_where_nobody_reads_them():
    """The lean form runs instead."""
    program = step()
    mask = tensor(program, (3,))
    wide = torch.ops.aten.native_dropout.default
    program.calls[1].target, program.calls[1].args = wide, (Ref(1), 0.0, True)
    program.calls[1].outputs, program.calls[1].is_tuple = [2, mask], True
    program.calls[1].optional, program.calls[1].lean = (1,), (aten.cos.default, (Ref(1),))
    program.values[mask].call, program.values[mask].position = 1, 1
    program.calls[1].is_tuple = False
    names = emit(program, STORE_ALL).forward.function.__globals__.values()
    assert aten.cos.default in list(names)
    assert wide not in list(names)
