"""A part of a step as a workload: its ops, what they cost, and what its schedules take."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.backend import session_of  # noqa: E402
from schedsim.validation.drop_in.parts import planned_part  # noqa: E402
from torch.utils._python_dispatch import _get_current_dispatch_mode  # noqa: E402

from schedsim import Graph, Op, Schedule, simulate  # noqa: E402


def stacked(x, weight):
    for _ in range(4):
        x = torch.nn.functional.dropout(torch.tanh(x @ weight), 0.2)
    return x, x.sum(0)


def output_of(weight):
    return lambda x: stacked(x, weight)[0]


@pytest.mark.slow
def test_costs_of_another_part_are_taken_and_those_before_are_forgotten(monkeypatch):
    """A part for other strides of gradients takes them again when they have been measured."""
    torch._dynamo.reset()
    options = {"budget": 10**9}
    step = torch.compile(stacked, backend="schedsim", options=options)
    step(torch.randn(8, 8, requires_grad=True), torch.nn.Parameter(torch.randn(8, 8)))
    (part,) = session_of(options).parts
    monkeypatch.setattr(planned_part.PlannedPart, "is_measured", False)
    found = []
    for workspace, time_s in ((1000, 1.0), (3000, 2.0)):
        ops = [
            replace(op, name=f"other {op.name}", workspace_bytes=workspace, time_s=time_s)
            for op in part.graph.ops
        ]
        other = SimpleNamespace(graph=SimpleNamespace(ops=ops))
        part.cost_as(other, {op.name: op.name.removeprefix("other ") for op in ops})
        found.append(part.cost(0))
    one, two = found
    assert two.backward_bytes - one.backward_bytes == 2000
    assert (one.time_s, two.time_s) == (part.graph.num_ops, 2 * part.graph.num_ops)
    torch._dynamo.reset()


@pytest.mark.slow
def test_what_shall_be_kept_runs_once():
    """By a pattern; one that names nothing is said."""
    torch._dynamo.reset()
    x = torch.randn(64, 8, requires_grad=True)
    weight = torch.nn.Parameter(torch.randn(8, 8))
    options = {"budget": 10**9, "keep": ["*tanh*", "nothing"], "effort": 0.2}
    step = torch.compile(stacked, backend="schedsim", options=options)
    for _ in range(2):
        step(x, weight)[0].square().sum().backward()
    with pytest.warns(UserWarning, match="'nothing' names no op"):
        step(x, weight)[0].square().sum().backward()
    (part,) = session_of(options).parts
    kept = {op.name for op in part.graph.ops if op.once}
    assert {name for name in part.graph.op_names if "tanh" in name} <= kept
    torch._dynamo.reset()


@pytest.mark.slow
def test_ops_are_measured_without_a_look_at_each(monkeypatch):
    """AOTAutograd looks at every op of a graph's first call, which takes longer than small ops."""
    modes, measure = [], planned_part.device_costs

    def seen(*given):
        modes.append(_get_current_dispatch_mode())
        return measure(*given)

    monkeypatch.setattr(planned_part, "device_costs", seen)
    torch._dynamo.reset()
    x, weight = torch.ones(4, 4), torch.ones(4, 4, requires_grad=True)
    step = torch.compile(stacked, backend="schedsim", options={"budget": 10**9})
    step(x, weight)[0].square().sum().backward()
    assert modes == [None]
    torch._dynamo.reset()


@pytest.mark.slow
def test_given_gradients_that_torch_holds_are_counted_to_the_end(monkeypatch):
    """Versions before 2.13 hold them, whatever the backward half lets go."""
    last, given = {}, 0
    for held in (False, True):
        monkeypatch.setattr(planned_part, "are_held", lambda held=held: held)
        torch._dynamo.reset()
        weight = torch.nn.Parameter(torch.randn(8, 8))
        options = {"budget": 10**9}
        step = torch.compile(output_of(weight), backend="schedsim", options=options)
        step(torch.randn(64, 8)).square().sum().backward()
        (part,) = session_of(options).parts
        assert weight.grad is not None
        given = part.given_bytes()
        last[held] = simulate(part.graph, Schedule.store_all(part.graph)).memory_bytes[-1]
    assert last[True] == last[False] + given
    torch._dynamo.reset()


def test_given_gradients_are_there_to_the_end_in_whatever_order_ops_run():
    graph = Graph(
        "part",
        (
            Op("outside", reads=(), writes={"given": 10, "lacking": 5}, time_s=1.0),
            Op("one", reads=("given",), writes={"a": 1}, time_s=1.0),
            Op("last", reads=("given",), writes={"b": 1}, time_s=1.0),
        ),
        results=("a", "b"),
    )
    held = planned_part._given_to_the_end(graph, "outside", ["lacking"])
    for names in (["outside", "one", "last"], ["outside", "last", "one"]):
        memory = simulate(held, Schedule.from_names(names)).memory_bytes
        assert memory[-1] == 12
