"""Plans of pipelines against brute force, bounds and budgets."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from chains import random_chain
from listed_plans import plans
from schedsim.algorithms.pipelines import _selection
from schedsim.algorithms.pipelines.fixed_recomputation import fixed_recomputation
from schedsim.algorithms.pipelines.plan_pipeline import plan_pipeline
from schedsim.algorithms.pipelines.stage_frontier import StageFrontiers
from tiers import slow_where

import schedsim
from schedsim import Chain
from schedsim.errors import InfeasibleBudgetError, SchedsimError, UnsupportedError
from schedsim.pipelines import Pipeline, StagePlan, make_order, make_pipeline, run_pipeline
from schedsim.plans.links import Link
from schedsim.workloads.synthetic import uniform


def best_of_all(pipeline: Pipeline, order: str, budget_bytes: int) -> float:
    """Least simulated step time within the budget over every persistent plan of every stage."""
    actions = make_order(order, pipeline.num_devices, pipeline.num_micro_batches)
    every = [
        [StagePlan(runs) for runs in plans(0, len(pipeline.stage_layers(v)))]
        for v in range(pipeline.num_stages)
    ]
    best = float("inf")
    for chosen in itertools.product(*every):
        run = run_pipeline(pipeline, actions, list(chosen))
        if run.peak_bytes <= budget_bytes:
            best = min(best, run.makespan_s)
    return best


def all_cuts(num_layers: int, num_stages: int):
    """Every partition."""
    for inner in itertools.combinations(range(1, num_layers), num_stages - 1):
        yield (0, *inner, num_layers)


def tight_budget(pipeline: Pipeline, order: str, share: float) -> int:
    """Between the least of one stage plan for all and what keeping all takes."""
    most = fixed_recomputation(pipeline, order=order).run.peak_bytes
    least = fixed_recomputation(pipeline, order=order, recompute="layers").run.peak_bytes
    return int(min(least, most) + share * abs(most - least))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("order", ["1f1b", "gpipe"])
def test_against_brute_force(seed, order):
    """Two stages of two layers, three micro-batches: never better than the best of all plans.

    And, the same plan for all micro-batches, mostly as good; the bound holds for the best of all.
    """
    rng = np.random.default_rng(seed)
    chain = random_chain(rng, 4)
    pipeline = make_pipeline(chain, 2, 3)
    budget = tight_budget(pipeline, order, (seed % 5) / 5)
    best = best_of_all(pipeline, order, budget)
    plan = plan_pipeline(pipeline, budget, order=order, mix=False)
    if plan.run is None:
        assert best == float("inf")
        assert plan.min_feasible_bytes > budget
        return
    assert plan.run.peak_bytes <= budget
    assert plan.run.makespan_s >= best * (1 - 1e-12)
    assert plan.run.makespan_s <= best * 1.06
    assert plan.lower_bound_s <= best * (1 + 1e-9)


@pytest.mark.parametrize("seed", slow_where(range(6), lambda seed: seed >= 2))
def test_partitions_against_brute_force(seed):
    """Five layers in two stages, cut anywhere, any plan of each stage."""
    rng = np.random.default_rng(50 + seed)
    chain = replace(random_chain(rng, 5), static_bytes=0)
    pipeline = make_pipeline(chain, 2, 3)
    budget = tight_budget(pipeline, "1f1b", 0.4)
    best = min(
        best_of_all(replace(pipeline, cuts=cuts), "1f1b", budget)
        for cuts in all_cuts(5, 2)
        if max(np.diff(cuts)) < 4
    )
    plan = plan_pipeline(pipeline, budget, partition="auto", mix=False)
    assert plan.run is not None
    assert plan.run.peak_bytes <= budget
    assert plan.run.makespan_s <= best * 1.06
    assert plan.lower_bound_s <= min(best, plan.run.makespan_s) * (1 + 1e-9)


def test_early_stages_recompute_more():
    """The first stage holds the most micro-batches, so it keeps the least of each."""
    pipeline = make_pipeline(uniform(32), 4, 16)
    plan = plan_pipeline(pipeline, 100_000_000)
    again = [use.recompute_s for use in plan.run.devices]
    assert again == sorted(again, reverse=True)
    assert again[0] > 0 == again[-1]
    fixed = fixed_recomputation(pipeline, order="1f1b", recompute="layers")
    assert plan.run.makespan_s < fixed.run.makespan_s


def test_all_memory_meets_the_bound():
    """Equal stages that keep all take exactly the bound, under gpipe and 1f1b."""
    for order in ("gpipe", "1f1b"):
        plan = plan_pipeline(make_pipeline(uniform(8), 4, 8), 10**9, order=order)
        assert plan.status == "optimal"
        assert plan.run.makespan_s == pytest.approx(0.066)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["interleaved", "zero-bubble"])
def test_other_orders_fit(order):
    """Several stages share a device; gradients of weights come late: the budget holds."""
    chunks = 2 if order == "interleaved" else 1
    pipeline = make_pipeline(
        uniform(16), 4, 8, num_chunks=chunks, split_backward=order == "zero-bubble"
    )
    keep = fixed_recomputation(pipeline, order=order)
    for share in (0.5, 0.7, 0.9) if order == "interleaved" else (0.8, 0.9):
        budget = int(share * keep.run.peak_bytes)
        plan = plan_pipeline(pipeline, budget, order=order)
        assert plan.run is not None
        assert plan.run.peak_bytes <= budget
        assert keep.run.makespan_s <= plan.run.makespan_s * (1 + 1e-9)
        assert plan.lower_bound_s <= plan.run.makespan_s


def test_a_budget_too_small():
    """The least that was found does fit."""
    pipeline = make_pipeline(uniform(8), 4, 8)
    plan = plan_pipeline(pipeline, 5_000_000)
    assert plan.status == "infeasible"
    assert plan.run is None
    again = plan_pipeline(pipeline, plan.min_feasible_bytes)
    assert again.feasible
    assert again.run.peak_bytes <= plan.min_feasible_bytes


def test_model_state_counts():
    """Resident bytes of layers go with the layers, and leave less room."""
    pipeline = make_pipeline(uniform(8), 4, 8, layer_static_bytes=[5_000_000] * 8)
    plan = plan_pipeline(pipeline, 60_000_000)
    assert [use.static_bytes for use in plan.run.devices] == [10_000_000] * 4
    assert plan.run.peak_bytes <= 60_000_000
    without = plan_pipeline(make_pipeline(uniform(8), 4, 8), 50_000_000)
    assert plan.run.makespan_s == without.run.makespan_s


def test_refusals():
    """What cannot be searched is said."""
    pipeline = make_pipeline(uniform(8), 2, 4, num_chunks=2)
    with pytest.raises(UnsupportedError, match="2 stages a device"):
        plan_pipeline(pipeline, 10**9, order="interleaved", partition="auto")
    with pytest.raises(SchedsimError, match="'some' is unknown"):
        fixed_recomputation(pipeline, order="interleaved", recompute="some")


def test_the_one_call():
    """`schedsim.plan` takes a pipeline by the planner's name, and says what would fit."""
    pipeline = make_pipeline(uniform(8), 4, 8)
    plan = schedsim.plan(pipeline, "60MB", "plan_pipeline")
    assert plan.run.peak_bytes <= 60_000_000
    with pytest.raises(InfeasibleBudgetError) as error:
        schedsim.plan(pipeline, "5MB", "plan_pipeline")
    assert error.value.min_feasible_bytes == plan_pipeline(pipeline, 5_000_000).min_feasible_bytes
    assert schedsim.plan(pipeline, "60MB").makespan_s == plan.makespan_s  # the one for pipelines
    with pytest.raises(UnsupportedError, match="does not take a pipeline"):
        schedsim.plan(pipeline, "60MB", "rotor")


@pytest.mark.parametrize("seed", slow_where(range(8), lambda seed: seed > 1))
def test_more_memory_is_never_slower(seed):
    """Every budget up to that of keeping all, against a search over all points of all stages.

    A run that fits a budget fits every larger one, so the step time never rises, and what is
    refused lies below all that is not.
    """
    rng = np.random.default_rng(900 + seed)
    order = ("1f1b", "gpipe", "1f1b", "zero-bubble")[seed % 4]
    pipeline = make_pipeline(
        random_chain(rng, int(rng.integers(3, 6))),
        int(rng.integers(2, 4)) if seed % 2 else 2,
        int(rng.integers(2, 5)),
        split_backward=order == "zero-bubble",
        link=Link(8.0, 0.25) if seed % 3 else None,
    )
    most = fixed_recomputation(pipeline, order=order).run.peak_bytes
    budgets = sorted({int(b) for b in np.linspace(0, most, 12)})
    times = [_step_s(plan_pipeline(pipeline, budget, order=order, mix=False)) for budget in budgets]
    assert times == sorted(times, reverse=True)
    mixed = [_step_s(plan_pipeline(pipeline, budget, order=order)) for budget in budgets]
    assert all(m <= t for m, t in zip(mixed, times, strict=True))
    assert [m == np.inf for m in mixed] == sorted((m == np.inf for m in mixed), reverse=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_more_memory_is_never_slower_where_choices_are_many(seed, monkeypatch):
    """A ladder of budgets stands for the search over all choices: it does not depend on the budget.

    Between rungs, too: 72 B were refused where 49 B and 75 B were not.
    """
    monkeypatch.setattr(_selection, "MOST_CHOICES", 0)
    rng = np.random.default_rng(1700 + seed)
    order = ("1f1b", "gpipe", "interleaved", "zero-bubble")[seed % 4]
    num_devices = int(rng.integers(2, 4))
    pipeline = make_pipeline(
        random_chain(rng, int(rng.integers(6, 9))),
        num_devices,
        2 * num_devices,
        num_chunks=2 if order == "interleaved" else 1,
        split_backward=order == "zero-bubble",
        link=Link(8.0, 0.25) if seed % 3 else None,
    )
    least = plan_pipeline(pipeline, 1, order=order).min_feasible_bytes
    most = fixed_recomputation(pipeline, order=order).run.peak_bytes
    budgets = [least - 1, *range(least, most + 2, max(1, (most - least) // 30))]
    times = [_step_s(plan_pipeline(pipeline, budget, order=order)) for budget in budgets]
    assert times == sorted(times, reverse=True)
    assert times[0] == np.inf > times[1]


def test_the_model_of_times_is_exact():
    """The ladder leaves out what takes no less time by the model than a run that was simulated."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        order = ("1f1b", "gpipe", "zero-bubble")[seed % 3]
        pipeline = make_pipeline(
            random_chain(rng, 7),
            3,
            4,
            split_backward=order == "zero-bubble",
            link=Link(8.0, 0.25) if seed % 2 else None,
        )
        facts = _selection.OrderFacts(pipeline, make_order(order, 3, 4))
        fronts = StageFrontiers(pipeline.chain, 10**6)
        one = _selection.Selection(pipeline, facts, fronts, mix=True)
        for room in range(20, 200, 30):
            choices = one.choose([room] * 3)
            if choices is not None:
                assert one.makespan_s(choices) == pytest.approx(one.run(choices).makespan_s)


def _step_s(plan) -> float:
    return np.inf if plan.run is None else plan.run.makespan_s


@pytest.mark.parametrize("seed", slow_where(range(10), lambda seed: seed >= 3))
def test_the_least_budget_named_is_accepted(seed):
    """By the same planner with the same options."""
    rng = np.random.default_rng(300 + seed)
    pipeline = make_pipeline(random_chain(rng, 7), 2 + seed % 3, 3 + seed % 4)
    order = ("1f1b", "gpipe", "zero-bubble")[seed % 3]
    options = {"order": order, "mix": seed % 2 == 0}
    refused = plan_pipeline(pipeline, 1, **options)
    assert refused.run is None
    least = refused.min_feasible_bytes
    assert plan_pipeline(pipeline, least, **options).run is not None
    assert plan_pipeline(pipeline, least + 1, **options).run is not None


@pytest.mark.slow
def test_mixed_micro_batches_are_never_slower_with_more_memory():
    """148 B were given a slower step than 147 B."""
    rng = np.random.default_rng(3)
    chain = random_chain(rng, int(rng.integers(3, 6)))
    pipeline = make_pipeline(chain, 2, int(rng.integers(2, 4)))
    times = [plan_pipeline(pipeline, b, order="gpipe").makespan_s for b in range(140, 152)]
    assert times == sorted(times, reverse=True)
    assert times[7] == 95.0


@pytest.mark.parametrize(("seed", "budget"), [(27, 54), (36, 35)])
def test_a_bound_is_a_number_where_nothing_fits(seed, budget):
    """Each stage fits alone, but not with the micro-batches in flight: infinity is no JSON."""
    pipeline = make_pipeline(random_chain(np.random.default_rng(seed), 4), 2, 4)
    plan = plan_pipeline(pipeline, budget)
    assert plan.status == "infeasible"
    assert json.loads(json.dumps(plan.to_dict(), allow_nan=False))["lower_bound_s"] > 0


def test_stages_of_one_device_are_not_full_at_one_time():
    """With two stages on the only device, 43 B were refused, though keeping all takes no more."""
    chain = Chain.from_arrays(
        "uneven",
        3,
        forward_s=[80, 4],
        backward_s=[20, 7],
        output_bytes=[8, 2],
        saved_bytes=[28, 7],
        forward_workspace_bytes=[3, 1],
        backward_workspace_bytes=[1, 1],
    )
    pipeline = make_pipeline(chain, 1, 1, num_chunks=2)
    actions = make_order("interleaved", 1, 1, 2)
    every = [StagePlan(runs) for runs in plans(0, 1)]
    runs = [run_pipeline(pipeline, actions, list(two)) for two in itertools.product(every, every)]
    for budget in range(min(run.peak_bytes for run in runs), 60):
        best = min(run.makespan_s for run in runs if run.peak_bytes <= budget)
        assert plan_pipeline(pipeline, budget, order="interleaved").makespan_s == best


@pytest.mark.parametrize("num_devices", [1, 2])
def test_an_output_that_is_sent_nowhere_is_held(num_devices):
    """With `free_outputs`, to recompute the last stage was no choice: keeping it seemed free."""
    chain = Chain.from_arrays(
        "outputs",
        2,
        forward_s=[2, 1],
        backward_s=[2, 5],
        output_bytes=[3, 6],
        saved_bytes=[3, 6],
    )
    order = "gpipe" if num_devices == 2 else "interleaved"
    num_chunks = 3 - num_devices
    pipeline = make_pipeline(chain, num_devices, 3, num_chunks=num_chunks, free_outputs=True)
    actions = make_order(order, num_devices, 3, num_chunks)
    every = [StagePlan(runs) for runs in plans(0, 1)]
    runs = [run_pipeline(pipeline, actions, list(two)) for two in itertools.product(every, every)]
    least = min(run.peak_bytes for run in runs)
    for budget in range(least, max(run.peak_bytes for run in runs) + 1):
        best = min(run.makespan_s for run in runs if run.peak_bytes <= budget)
        plan = plan_pipeline(pipeline, budget, order=order, mix=False)
        assert plan.makespan_s == best
        assert plan.lower_bound_s <= best


def as_good_as_all(pipeline: Pipeline, order: str, budget_bytes: int) -> float:
    """The step time planned, which is no more than the best of all plans of the stages."""
    actions = make_order(
        order, pipeline.num_devices, pipeline.num_micro_batches, pipeline.num_chunks
    )
    every = [
        [StagePlan(runs) for runs in plans(0, len(pipeline.stage_layers(v)))]
        for v in range(pipeline.num_stages)
    ]
    runs = [run_pipeline(pipeline, actions, list(some)) for some in itertools.product(*every)]
    best = min(run.makespan_s for run in runs if run.peak_bytes <= budget_bytes)
    plan = plan_pipeline(pipeline, budget_bytes, order=order, mix=False)
    assert plan.run is not None
    assert plan.lower_bound_s <= best * (1 + 1e-9)
    assert plan.makespan_s <= best * (1 + 1e-9)
    return plan.makespan_s


def test_a_freed_output_is_not_there_in_the_backward():
    """The first stage frees what it sends: its backward was counted with it, and 32 B refused."""
    chain = Chain.from_arrays(
        "freed",
        1,
        forward_s=[8, 2, 0],
        backward_s=[0, 0, 0],
        output_bytes=[4, 6, 0],
        saved_bytes=[4, 6, 0],
        forward_workspace_bytes=[2, 0, 0],
        backward_workspace_bytes=[2, 1, 2],
    )
    pipeline = make_pipeline(chain, 2, 4, cuts=(0, 2, 3), free_outputs=True)
    assert as_good_as_all(pipeline, "gpipe", 32) == 40.0


def test_a_slower_neighbour_may_be_what_fits():
    """Gradients wait on the first device unless the second recomputes, which frees nothing."""
    chain = Chain.from_arrays(
        "waiting",
        10,
        forward_s=[9, 7, 2, 4],
        backward_s=[3, 5, 2, 4],
        output_bytes=[16, 0, 2, 15],
        saved_bytes=[23, 0, 2, 15],
        forward_workspace_bytes=[3, 1, 0, 9],
        backward_workspace_bytes=[9, 5, 5, 5],
    )
    pipeline = make_pipeline(chain, 3, 4, cuts=(0, 1, 2, 4), link=Link(1e9, 3.0), free_outputs=True)
    assert as_good_as_all(pipeline, "1f1b", 80) < 100
    named = plan_pipeline(pipeline, 1).min_feasible_bytes  # by a slower neighbour, too
    assert plan_pipeline(pipeline, named).feasible
    assert not plan_pipeline(pipeline, named - 1).feasible


def test_keeping_may_fit_where_recomputing_at_no_cost_does_not():
    """A replay of no time runs while the stage waits, and holds its bundle meanwhile."""
    chain = Chain.from_arrays(
        "free replay",
        3,
        forward_s=[7, 8, 0, 6],
        backward_s=[0, 0, 5, 7],
        output_bytes=[7, 7, 7, 6],
        saved_bytes=[15, 10, 14, 8],
        forward_workspace_bytes=[1, 0, 3, 2],
        backward_workspace_bytes=[1, 3, 0, 0],
    )
    pipeline = make_pipeline(chain, 2, 4, num_chunks=2, link=Link(8.0, 0.25), free_outputs=True)
    assert as_good_as_all(pipeline, "interleaved", 79) == 100.5
