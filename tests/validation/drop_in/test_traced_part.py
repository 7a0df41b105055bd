"""A graph of Dynamo, run by any of its schedules."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in import traced_part  # noqa: E402
from schedsim.validation.drop_in.backend import session_of  # noqa: E402

from schedsim import Schedule, simulate  # noqa: E402


def stacked(x, weight):
    for _ in range(4):
        x = torch.nn.functional.dropout(torch.tanh(x @ weight), 0.2)
    return x, x.sum(0)


def output_of(weight):
    return lambda x: stacked(x, weight)[0]


def gradients(step, x, weight):
    torch.manual_seed(5)
    out, total = step(x, weight)
    (out.square().sum() + total.square().sum()).backward(retain_graph=True)
    out.square().sum().backward()
    found = [t.grad for t in (x, weight)]
    x.grad = weight.grad = None
    return [out, *found]


def test_every_schedule_gives_the_eager_bits():
    """Store-all, and one that recomputes; backward twice; dropout draws the same numbers."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    x = torch.randn(8, 8, requires_grad=True)
    weight = torch.nn.Parameter(torch.randn(8, 8))
    expected = gradients(stacked, x, weight)
    options = {"budget": 10**9}
    step = torch.compile(stacked, backend="schedsim", options=options)
    assert all(map(torch.equal, gradients(step, x, weight), expected))
    session = session_of(options)
    (part,) = session.parts
    names = list(part.graph.op_names)
    seed = names.index(part.seed_name)
    once = {op.name for op in part.graph.ops if op.once}
    again = [name for name in names[:seed] if name not in once]
    number = part.add(Schedule.from_names([*names[: seed + 1], *again, *names[seed + 1 :]]))
    session.numbers[(0, 0)] = number
    assert all(map(torch.equal, gradients(step, x, weight), expected))
    assert part.run_counts[again[0]] == 3  # two backwards
    assert part.cost(number).kept_bytes < part.cost(0).kept_bytes
    torch._dynamo.reset()


def test_costs_of_another_part_are_taken_and_those_before_are_forgotten(monkeypatch):
    """A part for other strides of gradients takes them again when they have been measured."""
    torch._dynamo.reset()
    options = {"budget": 10**9}
    step = torch.compile(stacked, backend="schedsim", options=options)
    step(torch.randn(8, 8, requires_grad=True), torch.nn.Parameter(torch.randn(8, 8)))
    (part,) = session_of(options).parts
    monkeypatch.setattr(traced_part.TracedPart, "is_measured", False)
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


def test_a_norm_that_is_called_twice_is_repeated_without_its_statistics():
    """The second call reads the statistics of the first; repeats of both read none."""
    torch._dynamo.reset()

    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(8)

        def forward(self, x):
            return torch.tanh(self.norm(torch.tanh(self.norm(x)))) * 2

    plain, model = Twice(), Twice()
    x = torch.randn(16, 8, requires_grad=True)
    options = {"budget": 10**9, "effort": 0.2}
    step = torch.compile(model, backend="schedsim", options=options)
    (expected,) = torch.autograd.grad(plain(x).square().sum(), x)
    step(x).square().sum().backward()
    session = session_of(options)
    (part,) = session.parts
    names, once = list(part.graph.op_names), {op.name for op in part.graph.ops if op.once}
    seed = names.index(part.seed_name)
    again = [name for name in names[:seed] if name not in once]
    assert sum("batch_norm" in name for name in again) == 2
    number = part.add(Schedule.from_names([*names[: seed + 1], *again, *names[seed + 1 :]]))
    session.numbers[(0, 0)] = number
    model.load_state_dict(Twice().state_dict())
    x.grad = None
    step(x).square().sum().backward()
    assert torch.equal(x.grad, expected)
    assert all(map(torch.equal, model.buffers(), plain.buffers()))
    torch._dynamo.reset()


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


def test_ops_are_measured_without_a_look_at_each(monkeypatch):
    """AOTAutograd looks at every op of a graph's first call, which takes longer than small ops."""
    from schedsim.validation.drop_in import traced_part
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    modes, measure = [], traced_part.device_costs

    def seen(*given):
        modes.append(_get_current_dispatch_mode())
        return measure(*given)

    monkeypatch.setattr(traced_part, "device_costs", seen)
    torch._dynamo.reset()
    x, weight = torch.ones(4, 4), torch.ones(4, 4, requires_grad=True)
    step = torch.compile(stacked, backend="schedsim", options={"budget": 10**9})
    step(x, weight)[0].square().sum().backward()
    assert modes == [None]
    torch._dynamo.reset()


def test_given_gradients_that_torch_holds_are_counted_to_the_end(monkeypatch):
    """Versions before 2.13 hold them, whatever the backward half lets go."""
    last, given = {}, 0
    for held in (False, True):
        monkeypatch.setattr(traced_part, "are_held", lambda held=held: held)
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
