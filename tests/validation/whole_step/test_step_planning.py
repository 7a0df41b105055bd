"""The schedule of a captured step, and what a budget counts beside it."""

from __future__ import annotations

import contextlib
import functools

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.compiled import any_order  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from schedsim.validation.whole_step import step_planning  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import InfeasibleBudgetError  # noqa: E402
from schedsim.plans.plan import make_plan  # noqa: E402


def test_a_search_ends_by_work_unless_seconds_alone_are_given(monkeypatch):
    """The same plan on a machine that is at other work; more work for more ops.

    An eighth of it where that leaves no gap to the bound.
    """
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    made = functools.partial(
        schedsim.rematerialize, model, torch.randn(64, 8), "90%", lambda y: y.sum(), level="op"
    )
    usual, quick, timed = made(), made(effort=0.1), made(time_limit_s=60)  # more than it takes
    given = [module.plan.options for module in (usual, quick, timed)]
    assert usual.plan.gap == 0
    assert given[0]["effort"] == (2 + len(set(usual.plan.schedule.names)) / 500) / 8
    monkeypatch.setattr(step_planning, "_SMALL_GAP", -1)  # no plan is good enough
    assert made().plan.options["effort"] == 8 * given[0]["effort"]
    assert "time_limit_s" not in given[0]
    assert given[1]["effort"] == 0.1
    assert "effort" not in given[2]
    assert given[2]["time_limit_s"] == 60


@pytest.mark.slow
def test_groups_of_a_compiled_step_come_in_any_order(uncompiled, monkeypatch):
    """Where that is not found to fit, in the order of the trace; an order that is given holds."""
    asked, try_plan = [], step_planning.try_plan

    def noted(*given, order="fixed", **more):
        asked.append(order)
        return try_plan(*given, order=order, **more)

    monkeypatch.setattr(step_planning, "try_plan", noted)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.randn(64, 8)
    made = functools.partial(
        schedsim.rematerialize, model, x, loss=lambda y: y.sum(), level="op", effort=0.1
    )

    def orders(budget, **options):
        asked.clear()
        with contextlib.suppress(InfeasibleBudgetError):
            made(budget, **options)
        return set(asked)

    assert orders(1 << 30, compile=True) == {"free"}
    assert orders(1, compile=True) == {"free", "fixed"}
    assert orders(1, compile=True, order="fixed") == {"fixed"}
    assert orders(1 << 30) == orders(1) == {"fixed"}


def test_a_plan_in_any_order_goes_back_to_the_trace_where_its_peak_stays():
    """It is replayed, so that what is predicted is what runs."""
    ops = [schedsim.Op("x", writes={"x": 1}, time_s=1.0)]
    for k in range(3):
        ops += [
            schedsim.Op(f"large{k}", reads=("x",), writes={f"a{k}": 10}, time_s=1.0),
            schedsim.Op(f"small{k}", reads=(f"a{k}",), writes={f"b{k}": 1}, time_s=1.0),
        ]
    graph = schedsim.Graph("branches", tuple(ops), results=tuple(f"b{k}" for k in range(3)))
    shuffled = schedsim.Schedule(graph.op_names, [0, 5, 1, 3, 4, 6, 2])
    plan = make_plan(graph, 100, shuffled, planner="local_search", seed=3, lower_bound_s=7.0)
    found = any_order.back_in_the_trace(graph, plan)
    assert found.schedule == schedsim.Schedule.store_all(graph)
    assert found.peak_bytes == schedsim.simulate(graph, found.schedule).peak_bytes < plan.peak_bytes
    assert (found.makespan_s, found.seed, found.status) == (7.0, 3, "optimal")
    refused = make_plan(graph, 100, None, planner="local_search")
    assert any_order.back_in_the_trace(graph, refused) is refused


def test_what_is_counted_beside_a_compiled_plan_is_of_the_schedule_that_runs(
    uncompiled, monkeypatch
):
    """As are copies of buffers that it keeps: first runs go back to the trace before."""
    moved, counted = [], []
    nearer, beside = step_planning.back_in_the_trace, step_planning._beside_states

    def noted(workload, plan):
        moved.append(nearer(workload, plan))
        return moved[-1]

    def seen(captured, plan, *more):
        counted.append(plan)
        return beside(captured, plan, *more)

    monkeypatch.setattr(step_planning, "back_in_the_trace", noted)
    monkeypatch.setattr(step_planning, "_beside_states", seen)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.randn(64, 8)
    made = functools.partial(
        schedsim.rematerialize, model, x, 1 << 30, lambda y: y.sum(), level="op", effort=0.1
    )
    made(compile=True)
    assert len(moved) == len(counted) > 0
    assert all(one is other for one, other in zip(moved, counted, strict=True))
    moved.clear()
    made(order="free")  # a plan that was asked for in any order is left as it is
    assert moved == []


class Queued(nn.Module):
    """Attends to what it has seen in earlier steps, as contrastive learning does."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("queue", torch.randn(1024, 16))

    def forward(self, x):
        seen = self.queue.clone()
        with torch.no_grad():
            self.queue.copy_(torch.cat([self.queue[64:], x[:64]]))
        return x + self.linear(torch.tanh(x @ seen.T).softmax(-1) @ seen)


def test_buffers_that_are_kept_for_repeated_blocks_are_within_the_budget():
    """A repeat finds each as its first run did, so that a copy waits for it."""
    torch.manual_seed(0)
    model, x = nn.Sequential(*(Queued() for _ in range(4))), torch.randn(256, 16)
    given = (lambda y: y.square().mean(),)
    with pytest.raises(InfeasibleBudgetError) as refused:  # the plan alone would fit
        schedsim.rematerialize(model, x, 4_700_000, *given, level="block")
    budget = refused.value.plan.min_feasible_bytes
    module = schedsim.rematerialize(model, x, budget, *given, level="block")
    queue = model[0].queue.nbytes
    kept = module.plan.setting.step.generator_states_bytes
    assert kept >= 2 * queue  # of a block, and of a repeat while it runs
    module(x).backward()
    for parameter in model.parameters():
        parameter.grad = None
    resident = storage_bytes([*model.parameters(), *model.buffers(), x])
    [reading] = AllocatorMeter().read(lambda: module(x).backward())
    assert max(module.run_counts.values()) > 1
    assert module.plan.peak_bytes < resident + reading.peak_bytes <= module.budget_bytes


@pytest.mark.slow
def test_the_least_budget_has_the_states_of_its_own_plan():
    """Of nine dropouts few are repeated there: it is no budget for the states of all of them."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.3)) for _ in range(9)]
    given = nn.Sequential(*layers), torch.randn(256, 16)
    options = {"loss": lambda y: y.square().mean(), "level": "op", "effort": 0.1}
    state = torch.get_rng_state().numel()
    with pytest.raises(InfeasibleBudgetError) as refused:
        schedsim.rematerialize(*given, 60_000, **options)
    least = refused.value.plan.min_feasible_bytes
    plan = schedsim.rematerialize(*given, least, **options).plan
    step = plan.setting.step
    states = step.generator_states_bytes if step is not None else 0
    assert plan.peak_bytes + states <= least < plan.peak_bytes + states + state
