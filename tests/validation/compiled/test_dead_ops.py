"""Parts of ops that nobody reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from fused_steps import assert_close, captured_step, gated, left_by  # noqa: E402
from schedsim.validation.capture.effects import insert_all  # noqa: E402
from schedsim.validation.capture.program import Call, Ref, Storage, Value  # noqa: E402
from schedsim.validation.capture.to_graph import to_graph  # noqa: E402
from schedsim.validation.compiled.dead_ops import drop_dead_ops  # noqa: E402
from schedsim.validation.compiled.fuse import fused  # noqa: E402
from schedsim.validation.compiled.group import FusedGroup, Groups  # noqa: E402

from schedsim import Schedule  # noqa: E402

aten = torch.ops.aten


def add_dead_chain(program):
    """Put two ops that nobody reads, with a view between them, behind the first op."""
    at, source = next(
        (i, call.outputs[0])
        for i, call in enumerate(program.calls)
        if not call.is_view and call.outputs and call.outputs[0] >= 0
    )
    like = program.values[source]
    size = program.storages[like.storage].size_bytes
    homes = len(program.storages), len(program.storages), len(program.storages) + 1
    program.storages += [Storage(size, "computed"), Storage(size, "computed")]
    first = len(program.values)
    for home in homes:
        program.values.append(Value(home, like.shape, like.stride, like.dtype, like.device))
    chain = [
        Call("dead", aten.sin.default, (Ref(source),), {}, outputs=[first]),
        Call("seen", aten.alias.default, (Ref(first),), {}, outputs=[first + 1], is_view=True),
        Call("end", aten.exp.default, (Ref(first + 1),), {}, outputs=[first + 2]),
    ]
    insert_all(program, [(at + 1, call) for call in chain])
    program.storages[homes[0]].call, program.storages[homes[2]].call = at + 1, at + 3


def test_a_chain_that_nobody_reads_is_left_out():
    """All of it, its views too; the other calls keep their order and their places."""
    program = captured_step(*gated(1)).program
    expected = [call.name for call in program.calls]
    add_dead_chain(program)
    assert len(program.calls) == len(expected) + 3
    drop_dead_ops(program)
    assert [call.name for call in program.calls] == expected
    for i, call in enumerate(program.calls):
        for v in call.outputs:
            assert v < 0 or program.values[v].call == i
    program_again = captured_step(*gated(1)).program
    assert program.seed == program_again.seed


@pytest.mark.slow
def test_each_group_returns_something_and_the_step_is_the_same(uncompiled):
    """A group of ops that nobody reads would return nothing, and could not be called."""
    model, inputs, loss = gated(1)
    captured = captured_step(model, inputs, loss)
    add_dead_chain(captured.program)
    program = fused(captured.program, Groups())
    groups = [call.target for call in program.calls if isinstance(call.target, FusedGroup)]
    assert groups
    assert all(group.outputs for group in groups)
    graph = to_graph(program, "fused", captured.graph.static_bytes)
    module = replace(captured, program=program, graph=graph).module(Schedule.store_all(graph))
    expected = left_by(lambda x, t: loss(model(x), t), model, inputs)
    assert_close(left_by(module, model, inputs), expected)
