"""Plans whose budget bounds what an allocator reserves."""

from __future__ import annotations

from dataclasses import replace

import pytest

import schedsim
from schedsim import Schedule, allocate, simulate
from schedsim.allocators import ALLOCATORS
from schedsim.allocators.planning import _AllocatedPlan, _WithinReserved, plan_reserved
from schedsim.api import try_plan
from schedsim.dataflow.recorded_step import RecordedStep
from schedsim.workloads import WorkloadOptions, build_workload


@pytest.fixture(scope="module")
def layers():
    return build_workload(WorkloadOptions(layers=24, hidden=768, heads=12, seq=512)).workload


@pytest.mark.parametrize("share", [0.5, 0.15])
@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_a_plan_is_within_the_budget_as_reserved(layers, allocator, share):
    budget = int(share * simulate(layers, Schedule.store_all(layers)).peak_bytes)
    exact = schedsim.plan(layers, budget)
    plan = schedsim.plan(layers, budget, allocator=allocator)
    simulation = simulate(layers, plan.schedule)
    found = allocate(simulation, allocator, num_steps=2)
    if plan.setting.allocator.num_emptied:
        found = allocate(simulation, allocator, num_steps=2, capacity_bytes=budget)
    assert found.fits
    assert found.peak_reserved_bytes == plan.setting.allocator.reserved_bytes <= budget
    assert plan.budget_bytes == budget
    assert plan.peak_bytes == simulation.peak_bytes <= plan.setting.allocator.inner_budget_bytes
    assert plan.makespan_s >= exact.makespan_s * (1 - 1e-9)
    assert plan.lower_bound_s <= exact.lower_bound_s * (1 + 1e-9)
    assert plan.status == ("optimal" if plan.gap == 0 else "feasible")


def test_a_budget_too_small_for_the_allocator_is_infeasible(layers):
    least = schedsim.api.try_plan(layers, 1).min_feasible_bytes
    plan = schedsim.api.try_plan(layers, least, allocator="cuda-caching")
    assert plan.status == "infeasible"
    assert plan.min_feasible_bytes > least
    again = schedsim.api.try_plan(layers, plan.min_feasible_bytes, allocator="cuda-caching")
    assert again.feasible
    with pytest.raises(schedsim.InfeasibleBudgetError):
        schedsim.plan(layers, least, allocator="cuda-caching")


def test_a_refusal_names_what_growing_segments_would_reserve(layers):
    """The number is the allocator's: with that setting there is a plan within it."""
    least = try_plan(layers, 1, allocator="cuda-caching").least
    assert least.growing_bytes < 0.97 * least.found_bytes
    growing = {"expandable_segments": True}
    given = {"allocator": "cuda-caching", "allocator_options": growing}
    assert try_plan(layers, least.growing_bytes, **given).feasible
    with pytest.raises(schedsim.InfeasibleBudgetError) as caught:
        schedsim.plan(layers, 1, allocator="cuda-caching")
    assert caught.value.hint.endswith(" with PYTORCH_ALLOC_CONF=expandable_segments:True")
    for other in (given, {"allocator": "best-fit"}, {}):
        assert try_plan(layers, 1, **other).least.growing_bytes is None


def test_a_plan_file_keeps_the_allocator(layers, tmp_path):
    budget = int(0.3 * simulate(layers, Schedule.store_all(layers)).peak_bytes)
    plan = schedsim.plan(
        layers, budget, allocator="cuda-caching", allocator_options={"expandable_segments": True}
    )
    schedsim.save(plan, tmp_path / "plan.json")
    allocator = schedsim.load(tmp_path / "plan.json").setting.allocator
    assert allocator == plan.setting.allocator
    assert allocator.name == "cuda-caching"
    assert allocator.options == {"expandable_segments": True}


def test_plans_that_never_wait_for_the_device(layers):
    """Slower or as fast as those that may, with nothing returned to the device."""
    budget = int(0.15 * simulate(layers, Schedule.store_all(layers)).peak_bytes)
    quick = schedsim.plan(layers, budget, allocator="cuda-caching")
    calm = schedsim.plan(
        layers, budget, allocator="cuda-caching", allocator_options={"spare_waits": True}
    )
    assert calm.setting.allocator.num_emptied == 0
    assert calm.makespan_s >= quick.makespan_s
    free = allocate(simulate(layers, calm.schedule), num_steps=2)
    assert free.peak_reserved_bytes == calm.setting.allocator.reserved_bytes <= budget


def test_a_plan_with_copies_is_measured_as_it_is_replayed(layers):
    budget = int(0.15 * simulate(layers, Schedule.store_all(layers)).peak_bytes)
    plan = schedsim.plan(
        layers, budget, "hrevolve", levels=[(24, 1e-5, 1e-5)], allocator="cuda-caching"
    )
    simulation = plan.simulate(layers)
    assert simulation.peak_bytes == plan.peak_bytes
    assert simulation.makespan_s == plan.makespan_s
    found = allocate(simulation, num_steps=2, capacity_bytes=budget)
    assert found.fits
    assert found.peak_reserved_bytes == plan.setting.allocator.reserved_bytes


def test_no_more_plans_are_made_than_asked_for(layers):
    """The fastest of the first two, where a third would be faster; the bound says by how much."""
    budget = int(0.15 * simulate(layers, Schedule.store_all(layers)).peak_bytes)
    asked = []

    def planner(_, inner: int) -> schedsim.Plan:
        asked.append(inner)
        return try_plan(layers, inner)

    few = plan_reserved(layers, budget, planner, max_plans=2)
    assert asked[0] == budget
    assert len(asked) == 2
    assert asked[1] < budget
    more = plan_reserved(layers, budget, planner)
    assert len(asked) <= 2 + 12
    assert more.makespan_s <= few.makespan_s
    assert few.lower_bound_s == more.lower_bound_s


def test_what_stays_just_above_the_budget_is_left_in_few_tries(monkeypatch):
    """Reserved bytes hardly fall before half of the budget; a little more fits near a fit."""
    budget = 1_000_000
    record = RecordedStep((), (8,), ("e",), {"F": (0,)})
    op = schedsim.Op("F", reads=("x",), writes={"e": 8}, time_s=1.0)
    graph = schedsim.Graph("one", (op,), inputs={"x": 8}, results=("e",), recorded=record)
    plan = schedsim.plan(graph, budget, allocator="exact")
    tried = []

    def measured(workload, plan, inner, budget, *_):
        tried.append(inner)
        reserved = int(1.02 * budget) if inner > budget // 2 else int(1.9 * inner)
        if inner in range(560_000, 580_000):
            reserved = 990_000  # not in order
        fits = reserved <= budget
        return _AllocatedPlan(plan, inner, 2 - inner / budget, reserved, reserved, fits, 0)

    monkeypatch.setattr("schedsim.allocators.planning._measure", measured)

    def planner(_, inner):
        return replace(plan, peak_bytes=inner, makespan_s=2 - inner / budget)

    chosen = plan_reserved(graph, budget, planner)
    assert chosen.setting.allocator.reserved_bytes >= 0.9 * budget
    assert chosen.setting.allocator.inner_budget_bytes > 0.48 * budget
    assert len(tried) <= 12
    assert min(tried) > 0.3 * budget


def test_an_exact_fit_needs_one_plan(layers):
    """Where everything fits as reserved, the first plan is the answer, and optimal still."""
    asked = []

    def planner(_, inner: int) -> schedsim.Plan:
        asked.append(inner)
        return try_plan(layers, inner)

    plan = plan_reserved(layers, 10**12, planner)
    assert asked == [10**12]
    assert plan.status == "optimal"
    assert plan.setting.allocator.inner_budget_bytes == 10**12


def test_a_planner_that_knows_no_least_budget_is_believed_in_nothing(layers):
    """Nothing fits, and nobody can say what would: no number is made up."""

    def silent(_, inner: int) -> schedsim.Plan:
        plan = try_plan(layers, 1)
        return replace(plan, least=schedsim.plans.least_budget.LeastBudget())

    plan = plan_reserved(layers, 1, silent)
    assert plan.status == "infeasible"
    assert plan.min_feasible_bytes is None
    assert plan.setting.allocator.name == "cuda-caching"


def test_an_unknown_allocator_is_refused_before_anything_is_planned(layers):
    """The names that there are stand in the hint."""
    with pytest.raises(schedsim.SchedsimError, match="unknown allocator 'buddy'") as caught:
        plan_reserved(layers, 1, pytest.fail, "buddy")
    assert "cuda-caching" in caught.value.hint


def test_the_curve_of_a_recorded_chain_is_walked_down(monkeypatch):
    """Reserved bytes jump: one narrow range of larger plans fits as well, and is faster."""
    budget = 1_000_000
    stage = schedsim.Stage("s", 1.0, 1.0, 8, 8)
    record = RecordedStep((), (8,), ("a1",), {"F0": (0,)})
    chain = schedsim.Chain("one", 8, (stage,), recorded=record)
    plan = schedsim.plan(chain, budget, allocator="exact")

    def measured(workload, plan, inner, budget, *_):
        fits = inner < budget // 2 or 840_000 <= inner < 860_000
        reserved = budget - 1 if fits else int(1.9 * budget)
        return _AllocatedPlan(plan, inner, plan.makespan_s, reserved, reserved, fits, 0)

    monkeypatch.setattr("schedsim.allocators.planning._measure", measured)
    tried = []

    def planner(_, inner):
        tried.append(inner)
        return replace(plan, peak_bytes=inner, makespan_s=2 - inner / budget)

    chosen = plan_reserved(chain, budget, planner)
    assert 840_000 <= chosen.setting.allocator.inner_budget_bytes < 860_000
    assert len(tried) <= 12 + 64


@pytest.mark.parametrize(("num_events", "tries"), [(10, 2000), (10_000, 1000), (10**6, 40)])
def test_small_steps_have_more_tries_with_fewer_repeats(num_events, tries):
    """Each try plays the whole step."""
    record = RecordedStep((), (8,), ("a1",), {"F0": (0, ~0) * (num_events // 2)})
    chain = schedsim.Chain("one", 8, (schedsim.Stage("s", 1.0, 1.0, 8, 8),), recorded=record)
    search = _WithinReserved(
        chain, 100, lambda inner: None, "cuda-caching", {}, False, lambda: None
    )
    assert search.most_tries == tries


def test_a_narrow_range_of_plans_that_fit_is_found(monkeypatch):
    """Above the least budget, where the first guess from what is reserved falls below it."""
    budget, least = 1_000_000, 700_000
    record = RecordedStep((), (8,), ("a1",), {"F0": (0,)})
    chain = schedsim.Chain("one", 8, (schedsim.Stage("s", 1.0, 1.0, 8, 8),), recorded=record)
    plan = schedsim.plan(chain, budget, allocator="exact")
    poor = replace(schedsim.api.try_plan(chain, 1, allocator="exact"), budget_bytes=0)
    poor = replace(poor, least=replace(poor.least, found_bytes=least))

    def measured(workload, plan, inner, budget, *_):
        fits = 800_000 <= inner < 830_000
        reserved = int(1.7 * budget)
        return _AllocatedPlan(plan, inner, plan.makespan_s, reserved, budget, fits, 1)

    def planner(_, inner):
        return poor if inner < least else replace(plan, peak_bytes=inner)

    monkeypatch.setattr("schedsim.allocators.planning._measure", measured)
    chosen = plan_reserved(chain, budget, planner)
    assert chosen.feasible
    assert 800_000 <= chosen.setting.allocator.inner_budget_bytes < 830_000
