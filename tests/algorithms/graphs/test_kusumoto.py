"""The dynamic programme over lower sets against enumeration, and the poster's order of methods."""

from __future__ import annotations

import math

import numpy as np
import pytest
from chains import INSTANCES, needs_instances
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.graphs._forward_part import forward_part
from schedsim.algorithms.graphs._lower_sets import all_masks, reachable_masks
from schedsim.algorithms.graphs.chen_articulation import chen_articulation
from schedsim.algorithms.graphs.kusumoto import kusumoto, lower_set_runs, order_by_groups
from tiers import examples, slow_where
from training_graphs import random_training_graph, some_budget, unit_training_chain

from schedsim import Graph, Op, PlannerLimitError, Schedule, load, simulate


@given(seed=st.integers(0, 10**9), num_forward=st.integers(1, 12))
@settings(max_examples=examples(100))
def test_the_free_order_is_legal(seed, num_forward):
    """Set by set: within the budget in the replay, and the same runs in another order."""
    rng = np.random.default_rng(seed)
    graph = random_training_graph(rng, num_forward)
    part = forward_part(graph.arrays)
    masks = all_masks(part, 10_000) if num_forward < 8 else reachable_masks(part)
    fixed = lower_set_runs(part, masks, 100, num_limits=4)
    free = lower_set_runs(part, masks, 100, num_limits=4, order="free")
    for (limit, one), (same_limit, other) in zip(fixed, free, strict=True):
        assert limit == same_limit
        simulate(graph, Schedule(graph.op_names, other))
        assert sorted(one.tolist()) == sorted(other.tolist())
    plan = kusumoto(graph, some_budget(rng, graph), order="free", num_limits=4)
    assert plan.peak_bytes is None or plan.peak_bytes <= plan.budget_bytes


def test_two_branches_run_one_after_the_other():
    """The graph's order alternates two branches; the free order runs a set before the next."""
    ops = [Op("a0", time_s=1, writes={"a0": 9}), Op("b0", time_s=1, writes={"b0": 9})]
    for i in (1, 2):
        for k in "ab":
            ops.append(Op(f"{k}{i}", time_s=1, reads=(f"{k}{i - 1}",), writes={f"{k}{i}": 9}))
    part = forward_part(Graph("branches", tuple(ops)).arrays)
    group = np.array([0, 1, 0, 1, 0, 1])
    assert order_by_groups(part, group).tolist() == [0, 2, 4, 1, 3, 5]


@needs_instances
@pytest.mark.parametrize(
    ("family", "poster"), [("approximate", 0.55), ("exact", 0.52)], ids=["approximate", "exact"]
)
def test_unet_in_the_papers_order(family, poster):
    """Memory-centric, set by set, the least peak is within 5 points of the poster's reduction."""
    graph = load(INSTANCES / "dag" / "ku_unet_train.json")
    store_all = simulate(graph, Schedule.store_all(graph)).peak_bytes
    plan = kusumoto(graph, 0, family=family, objective="memory", order="free")
    assert plan.min_feasible_bytes / store_all == pytest.approx(poster, abs=0.05)


def test_uneven_times_are_rounded_to_steps():
    """Times that are no multiples of one number still give a plan, and at the exact time."""
    ops = [
        Op(f"f{i}", time_s=math.sqrt(i + 2), reads=(f"x{i}",) if i else (), writes={f"x{i + 1}": 1})
        for i in range(20)
    ]
    ops.append(Op("loss", "loss", reads=("x20",), writes={"d20": 1}))
    for i in range(19, 0, -1):
        reads = (f"x{i}", f"d{i + 1}")
        ops.append(Op(f"b{i}", "backward", 1, reads=reads, writes={f"d{i}": 1}))
    graph = Graph("uneven", tuple(ops))
    plan = kusumoto(graph, 14)
    assert plan.feasible
    assert plan.makespan_s == simulate(graph, plan.schedule).makespan_s > graph.store_all_s


def test_too_many_sets_are_refused():
    """Ops side by side have 2^n lower sets: the error names the limit and the other family."""
    ops = [Op(f"f{i}", time_s=1, writes={f"x{i}": 1}) for i in range(14)]
    ops.append(Op("b", "backward", reads=tuple(f"x{i}" for i in range(14))))
    graph = Graph("wide", tuple(ops))
    with pytest.raises(PlannerLimitError, match="3,000") as caught:
        kusumoto(graph, 100, family="exact")
    assert "approximate" in caught.value.hint
    assert kusumoto(graph, 100).feasible
    with pytest.raises(PlannerLimitError, match="14 ops"):
        kusumoto(graph, 100, max_sets=10)


def test_a_graph_without_a_backward():
    """However many lower sets there are, nothing is looked at: only store-all can be had."""
    ops = tuple(Op(f"f{i}", time_s=1, writes={f"x{i}": 1}) for i in range(40))
    graph = Graph("no backward", ops)
    assert kusumoto(graph, 1, family="exact").status == "optimal"
    assert kusumoto(graph, 0, family="exact").min_feasible_bytes == 1


@pytest.mark.parametrize("num", [16, 64])
def test_memory_of_a_unit_chain(num):
    """Within a constant factor of sqrt(n) kept and sqrt(n) made again, as for chains of stages."""
    graph = unit_training_chain(num)
    least = kusumoto(graph, 0, objective="memory").min_feasible_bytes
    assert least <= 2 * math.sqrt(num) + 2
    assert kusumoto(graph, least, objective="memory").makespan_s <= graph.store_all_s + num


@needs_instances
@pytest.mark.parametrize(
    "name",
    slow_where(
        ["ku_unet", "ku_resnet50", "ku_densenet", "ku_googlenet"],
        lambda name: name == "ku_densenet",
    ),
)
def test_the_order_of_the_poster(name):
    """Least peaks: neither family above Chen's, all below store-all by a third at the least."""
    graph = load(INSTANCES / "dag" / f"{name}_train.json")
    store_all = simulate(graph, Schedule.store_all(graph)).peak_bytes

    def least(family: str) -> int:
        plans = [kusumoto(graph, 0, family=family, objective=o) for o in ("time", "memory")]
        return min(plan.min_feasible_bytes for plan in plans)

    chen = chen_articulation(graph, 0, search="paper").min_feasible_bytes
    approximate = least("approximate")
    assert approximate <= chen
    assert approximate <= 0.66 * store_all
    if name in ("ku_unet", "ku_resnet50"):
        assert least("exact") <= chen
