"""What must not run again, and what must: patterns, planners beside brute force, refusals."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from schedsim.algorithms.chains.frontier import exact_frontier
from schedsim.algorithms.chains.rotor import rotor

import schedsim
from schedsim.api import compare, try_plan
from schedsim.dataflow.recomputation_rules import RecomputationRules, check_evicted, is_evicted
from schedsim.errors import (
    InvalidScheduleError,
    PlannerSkippedWarning,
    SchedsimError,
    UnsupportedError,
)
from schedsim.files.document import from_dict, to_dict


def persistent(num: int, loss_apart: bool) -> Iterator[tuple[int, ...]]:
    """The runs of every persistent schedule; with `loss_apart` the last stage may run twice."""

    def runs(i: int, k: int) -> Iterator[tuple[int, ...]]:
        if i == num:
            yield (num,)
            return
        if k == i + 1:
            yield (i, 2 * num - i)
            return
        for inner in runs(i + 1, k):
            yield (i, *inner, 2 * num - i)
        for j in range(i + 1, k if loss_apart or k <= num else num):
            for right in runs(j, k):
                for left in runs(i, j):
                    yield (*range(i, j), *right, *left)

    return runs(0, num + 1)


def some_chain(rng: random.Random) -> schedsim.Chain:
    num = rng.randint(1, 4)
    outputs = [rng.randint(1, 5) for _ in range(num)]
    chain = schedsim.Chain.from_arrays(
        "some",
        rng.randint(1, 4),
        forward_s=[rng.randint(1, 4) for _ in outputs],
        backward_s=[rng.randint(1, 4) for _ in outputs],
        output_bytes=outputs,
        saved_bytes=[size + rng.choice([0, 1, 3, 6]) for size in outputs],
        forward_workspace_bytes=[rng.randint(0, 2) for _ in outputs],
        backward_workspace_bytes=[rng.randint(0, 2) for _ in outputs],
    )
    return replace(chain, loss_s=2.0, loss_workspace_bytes=rng.randint(0, 3))


def some_rules(rng: random.Random, names: list[str]) -> RecomputationRules:
    keep = [name for name in names if rng.random() < 0.3]
    return RecomputationRules(
        tuple(keep), tuple(name for name in names if name not in keep and rng.random() < 0.5)
    )


def lower_envelope(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    found: list[tuple[int, float]] = []
    for peak, time_s in sorted(points):
        if not found or time_s < found[-1][1]:
            found.append((peak, time_s))
    return found


@pytest.mark.parametrize("seed", range(40))
def test_the_exact_curve_is_that_of_all_persistent_schedules_that_hold_to_it(seed):
    """Enumerated one by one, and those thrown away that break a rule."""
    rng = random.Random(seed)
    chain = some_chain(rng)
    rules = some_rules(rng, [stage.name for stage in chain.stages])
    ruled = rules.of_workload(chain)
    loss_apart = any(op.evicted for op in ruled.graph.ops)
    held = []
    for runs in persistent(chain.num_stages, loss_apart):
        schedule = schedsim.Schedule(chain.op_names, np.array(runs, np.int32))
        try:  # the simulator refuses what runs a kept stage again
            found = schedsim.simulate(ruled, schedule)
        except InvalidScheduleError:
            continue
        held.append((found.peak_bytes, found.makespan_s))
    expected = lower_envelope(held)
    curve = exact_frontier(ruled)
    assert list(zip(curve.budget_bytes, curve.makespan_s, strict=True)) == expected
    for budget, time_s in expected[:2]:
        plan = rotor(ruled, budget)
        assert (plan.makespan_s, plan.status) == (time_s, "optimal")
        best = try_plan(ruled, budget, "exhaustive") if chain.num_stages < 4 else plan
        assert best.makespan_s <= time_s
    least = try_plan(chain, expected[0][0] - 1, keep=rules.keep, recompute=rules.recompute)
    assert least.min_feasible_bytes == expected[0][0]


def test_rules_change_what_is_best():
    """Else the test before says nothing."""
    times = set()
    for keep, recompute in ((None, None), ("s2", None), (None, "s0")):
        plan = schedsim.plan(FOUR, 64, keep=keep, recompute=recompute)
        times.add((plan.makespan_s, plan.peak_bytes, tuple(plan.schedule.names)))
    assert len(times) == 3


FOUR = schedsim.Chain.from_arrays(
    "four", 4, forward_s=[1] * 4, backward_s=[2] * 4, output_bytes=[4] * 4, saved_bytes=[20] * 4
)


def test_a_plan_says_what_it_holds_to_and_its_file_too():
    """The bound speaks of these rules; the replay refuses a schedule that breaks them."""
    plan = schedsim.plan(FOUR, 64, keep="s1", recompute=["s0"])
    assert plan.status == "optimal"
    assert str(plan.bound_scope) == "persistent schedules, kept and recomputed as asked"
    assert plan.schedule.names.count("F1") == 1
    assert plan.schedule.names.count("F0") >= 2
    again = from_dict(to_dict(plan))
    assert again == plan
    assert again.setting.rules == RecomputationRules(("s1",), ("s0",))
    assert schedsim.simulate(FOUR, again).makespan_s == plan.makespan_s
    plain = schedsim.Schedule.store_all(FOUR)
    with pytest.raises(InvalidScheduleError, match="reads r1 as the forward wrote it"):
        schedsim.simulate(FOUR, replace(plan, schedule=plain))
    names = ["F0", "F1", "F2", "F3", "loss", "B3", "F0", "F1", "F2", "B2", "B1", "F0", "B0"]
    with pytest.raises(InvalidScheduleError, match="F1"):
        schedsim.simulate(FOUR, replace(plan, schedule=schedsim.Schedule.from_names(names)))
    assert "rules" not in to_dict(schedsim.plan(FOUR, 64))["setting"]


def test_a_workload_file_may_have_them():
    """The rule of a stage, and what is evicted of an op, come back as they were."""
    chain = RecomputationRules(("s1",), ("s0",)).of_workload(FOUR)
    for workload in (chain, chain.graph):
        assert from_dict(to_dict(workload)) == workload
    plan = schedsim.plan(chain, 64)
    assert plan.makespan_s == schedsim.plan(FOUR, 64, keep="s1", recompute="s0").makespan_s


def test_what_names_nothing_is_refused_with_the_near_names():
    """And so is what cannot be recomputed."""
    with pytest.raises(SchedsimError, match="keep: 'stage1' names nothing of four") as refused:
        schedsim.plan(FOUR, 64, keep="stage1")
    assert "s1" in refused.value.hint
    with pytest.raises(SchedsimError, match="recompute: 's0' names 's0' of four, which is kept"):
        schedsim.plan(FOUR, 64, keep="s0", recompute="s0")
    with pytest.raises(SchedsimError, match="no pattern of names"):
        schedsim.plan(FOUR, 64, keep="")
    graph = schedsim.Graph("g", (schedsim.Op("moe.router.mm", writes={"x": 8}, once=True),))
    with pytest.raises(SchedsimError, match="names nothing") as refused:
        RecomputationRules(("moe.ruter",)).of_workload(graph)
    assert "moe.router" in refused.value.hint
    with pytest.raises(SchedsimError, match="runs once, or not in the forward"):
        RecomputationRules((), ("moe",)).of_workload(graph)


def test_who_cannot_hold_to_them_says_so():
    """No planner drops a rule in silence; a comparison leaves such a one out, with a warning."""
    for name in ("periodic", "revolve", "hrevolve", "recompute_all", "bisection", "chen_sqrt"):
        with pytest.raises(UnsupportedError, match="cannot follow keep on a chain"):
            try_plan(FOUR, 64, name, keep="s1")
    with pytest.raises(UnsupportedError, match="cannot follow recompute on a chain"):
        try_plan(FOUR, 10**6, "store_all", recompute="s1")
    for options in ({"link": "16B/s"}, {"order": "free"}, {"allow": ("approx",)}):
        with pytest.raises(UnsupportedError, match="recompute does not go with"):
            try_plan(FOUR.graph, 64, recompute="F1", **options)
    with pytest.warns(PlannerSkippedWarning, match="cannot follow keep"):
        plans = compare(FOUR, 64, ["frontier", "periodic"], keep="s1")
    assert [plan.planner for plan in plans] == ["frontier"]


def test_a_planner_of_others_is_checked():
    """What it gives is replayed on the workload with the rules."""
    with pytest.raises(SchedsimError):
        try_plan(
            FOUR, 10**6, lambda chain, budget: schedsim.Schedule.store_all(chain), recompute="s1"
        )


@pytest.mark.slow
def test_offloading_holds_to_what_is_kept():
    """A kept stage may go to the host and come back; it does not run again."""
    plan = schedsim.plan(FOUR, 44, keep="*", link="16B/s", effort=0.5)
    assert plan.setting.link is not None
    assert all(plan.schedule.names.count(f"F{i}") == 1 for i in range(4))


@pytest.mark.slow
def test_the_curve_is_that_of_the_rules():
    """The exact one of a chain, and the sampled one of a graph."""
    curve = schedsim.pareto(FOUR, keep="s1", recompute="s0")
    assert curve.scope == "persistent schedules, kept and recomputed as asked"
    assert curve.points[-1].makespan_s == FOUR.store_all_s + 1
    sampled = schedsim.pareto(FOUR.graph, recompute="F0", effort=0.5, num_points=4)
    assert sampled.points[-1].makespan_s == FOUR.store_all_s + 1
    for point in sampled.points:
        ruled = RecomputationRules((), ("F0",)).of_workload(FOUR.graph)
        check_evicted(ruled, point.schedule)
    kept = schedsim.pareto(FOUR.graph, keep="F*", effort=0.5, num_points=4)
    assert kept.points[0].makespan_s == FOUR.store_all_s


@pytest.mark.parametrize("num_points", [31, 32])
def test_a_curve_of_any_number_of_points_begins_at_the_least(num_points):
    """Also where there are as many as of a planner that does not search."""
    asked = []
    plan = try_plan(FOUR.graph, 1, recompute="F0", effort=0.1)

    def seen(workload, budget, planner, **options):
        asked.append(budget)
        return plan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("schedsim.plans.pareto"), "try_plan", seen)
        schedsim.pareto(FOUR.graph, recompute="F0", num_points=num_points)
    assert asked[0] == 1
    assert min(asked[1:]) == plan.min_feasible_bytes


def test_explanations_do_not_undo_what_was_asked():
    """Keeping what must be recomputed is no advice."""
    plan = schedsim.plan(FOUR, 64, recompute="s0")
    ruled = plan.setting.resolve(FOUR)
    explained = schedsim.explain(ruled, plan.schedule)
    assert not any(change.op_name == "F0" and change.time_change_s < 0 for change in explained.keep)
    assert is_evicted(ruled.graph, plan.schedule)


def test_a_graph_without_rules_is_looked_at_once():
    """Simulations of short schedules are many: none of them reads all ops for rules."""
    graph = schedsim.Graph("one", (schedsim.Op("a", writes={"x": 1}),))
    schedule = schedsim.Schedule.store_all(graph)
    check_evicted(graph, schedule)
    object.__setattr__(graph, "ops", None)
    check_evicted(graph, schedule)
