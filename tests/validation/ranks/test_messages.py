"""Ops that other ranks wait for: their order in every schedule."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.capture.effects import order_messages  # noqa: E402
from schedsim.validation.capture.program import Call, Program, Ref, Storage, Value  # noqa: E402
from schedsim.validation.ranks.messages import messages_of, said_messages  # noqa: E402

import schedsim  # noqa: E402

OPS = torch.ops._c10d_functional


def _program():
    """Two messages of one input that do not need each other, the backward, and a third."""
    program = Program()
    names = ("x", "a", "b", "loss", "given", "c")
    for i in range(len(names)):
        program.storages.append(Storage(8, "computed", i - 1))
        program.values.append(Value(i, (2,), (1,), torch.float32, torch.device("cpu"), call=i - 1))
    made = [("a", [0], [1]), ("b", [0], [2]), ("loss", [1], [3, 4]), ("c", [0], [5])]
    for name, read, written in made:
        args = tuple(map(Ref, read))
        program.calls.append(Call(name, torch.relu, args, {}, outputs=written))
    program.seed = 2
    return program


def test_messages_keep_the_order_of_the_trace():
    """Each waits for the one before it, and for the backward to begin, where data does not say."""
    program = _program()
    order_messages(program, [0, 1, 3])
    assert [call.tokens for call in program.calls] == [(), (0,), (1,), (2,)]
    program = _program()
    order_messages(program, [])
    assert not any(call.tokens for call in program.calls)


def _sending(*calls):
    program = _program()
    for call, (target, args) in zip(program.calls, calls, strict=False):
        call.target, call.args = target, (*call.args, *args)
    return program


def test_the_messages_of_a_graph_are_named_without_their_group():
    """Ranks name their groups otherwise; an op that cannot be silent is refused."""
    first = _sending((OPS.all_reduce.default, ("sum", "7")))
    other = _sending((OPS.all_reduce.default, ("sum", "9")))
    assert messages_of(first) == messages_of(other)
    assert said_messages(messages_of(first)).startswith("1 (")
    largest = _sending((OPS.all_reduce.default, ("max", "7")))
    assert said_messages(messages_of(first)) != said_messages(messages_of(largest))
    with pytest.raises(schedsim.UnsupportedError, match="one of them cannot measure it"):
        messages_of(_sending((OPS.all_reduce_coalesced.default, ("sum", "7"))))
