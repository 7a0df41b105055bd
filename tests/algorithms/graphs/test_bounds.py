"""Bounds against oracles: never above what can be had, and sharp where that is known."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from chains import INSTANCES, needs_instances, random_chain, random_graph
from fixed_order import fixed_order_optimum
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.exhaustive import exhaustive
from schedsim.algorithms.graphs.bounds import (
    FIXED_ORDER,
    least_memory_bytes,
    scope_of,
    time_bound_s,
)
from tiers import examples
from tiny_families import tiny_graph

from schedsim import Graph, InvalidScheduleError, Op, SchedsimError, Schedule, load, simulate
from schedsim.api import try_plan


def some_graph(rng, most_ops: int) -> Graph:
    """A random graph with every feature, or a short chain as a graph."""
    if rng.random() < 0.3:
        return random_chain(rng, int(rng.integers(1, 4))).graph
    return random_graph(rng, int(rng.integers(2, most_ops + 1)))


def budgets_of(rng, graph) -> set[int]:
    """From the least conceivable to below the store-all peak."""
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    least, _ = least_memory_bytes(graph)
    return {least, peak - 1, *rng.integers(min(least, peak), peak + 1, 2).tolist()}


@pytest.mark.parametrize("seed", range(4))
def test_the_fixed_order_search_equals_enumeration(seed):
    """The oracle itself: all sequences of up to six runs whose first runs are in order."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, 4)
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    found = []
    for length in (4, 5, 6):
        for runs in itertools.product(range(4), repeat=length):
            if list(dict.fromkeys(runs)) != [0, 1, 2, 3]:
                continue
            try:
                simulation = simulate(graph, Schedule(graph.op_names, runs))
            except InvalidScheduleError:
                continue
            found.append((simulation.peak_bytes, simulation.makespan_s))
    for budget in range(peak, max(0, peak - 20), -2):
        best = fixed_order_optimum(graph, budget)
        enumerated = min((time_s for size, time_s in found if size <= budget), default=math.inf)
        assert best <= enumerated
        if enumerated < math.inf and best < enumerated:
            # Only a longer sequence can be faster, and only through ops that take no time.
            assert min(op.time_s for op in graph) <= 1


@given(seed=st.integers(0, 10**12))
@settings(max_examples=examples(250))
def test_no_bound_is_above_an_optimum(seed):
    """Time bounds for both orders, at every step of their making, and the least memory."""
    rng = np.random.default_rng(seed)
    graph = some_graph(rng, 7)
    least, op_name = least_memory_bytes(graph)
    assert op_name in graph.op_names
    limit_s = float(rng.choice([0.0, 5.0]))  # 0: the knapsacks alone
    for budget in budgets_of(rng, graph):
        if budget < 0:
            continue
        in_order = fixed_order_optimum(graph, budget)
        plan = exhaustive(graph, budget)
        anyhow = plan.makespan_s if plan.feasible else math.inf
        assert budget >= least or math.isinf(anyhow)
        for order, best in (("fixed", in_order), ("free", anyhow)):
            bound_s, how = time_bound_s(graph, budget, order=order, time_limit_s=limit_s)
            assert graph.store_all_s <= bound_s <= best * (1 + 1e-9)
            assert how


@given(seed=st.integers(0, 10**12))
@settings(max_examples=examples(60))
def test_bounds_fall_with_the_budget_and_with_freedom(seed):
    """More memory, or a free order, never raises the bound where the programmes are solved."""
    rng = np.random.default_rng(seed)
    graph = some_graph(rng, 7)
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    for order in ("fixed", "free"):
        bounds = [
            time_bound_s(graph, budget, order=order, time_limit_s=5)[0]
            for budget in range(max(0, peak - 12), peak + 1, 4)
        ]
        assert all(less >= more for less, more in itertools.pairwise(bounds)) or order == "fixed"
        assert bounds[-1] == graph.store_all_s


def test_least_memory_counts_what_cannot_be_made_again():
    """By hand: while g runs, its input y and output z, the graph input x, and the once output k."""
    ops = (
        Op("once", writes={"k": 100}, once=True),
        Op("f", reads=("x",), writes={"y": 10}),
        Op("g", reads=("y",), writes={"z": 20}, workspace_bytes=3),
        Op("h", "backward", reads=("z", "k", "x")),
    )
    # At g: 7 static + y 10 + z 20 + 3 workspace + x 1000, read by h; k is no ancestor's, so that g
    # may come first. At h: z 20 + k 100 + x 1000.
    graph = Graph("g", ops, {"x": 1000}, static_bytes=7)
    assert least_memory_bytes(graph) == (1127, "h")
    # Now k is made before g in every order, and read after it.
    before = (ops[0], Op("f", reads=("x", "k"), writes={"y": 10}), *ops[2:])
    assert least_memory_bytes(Graph("g", before, {"x": 1000}, 7)) == (1140, "g")


def test_in_place_is_counted_once():
    """y takes over x: 10 bytes in all, unless x is read after it and cannot be made again."""
    ops = (Op("f", reads=("x",), writes={"y": 10}, in_place={"y": "x"}), Op("g", reads=("y",)))
    assert least_memory_bytes(Graph("g", ops, {"x": 10})) == (10, "f")
    late = (*ops, Op("h", reads=("x", "y")))
    assert least_memory_bytes(Graph("g", late, {"x": 10})) == (20, "f")


def test_a_cut_by_hand():
    """Four ops before a large one, read in turn after it: what does not fit is made again."""
    ops = [Op(f"f{i}", time_s=i + 1, writes={f"t{i}": 10}) for i in range(4)]
    ops.append(Op("large", time_s=0, workspace_bytes=50))
    ops += [Op(f"b{i}", "backward", 1, reads=(f"t{i}",)) for i in range(4)]
    # Beside "large" one or two of the tensors fit in 70 bytes: the two cheapest, 1 + 2, go.
    graph = Graph("cut", tuple(ops))
    assert time_bound_s(graph, 70, time_limit_s=0)[0] == graph.store_all_s + 3
    # In 65 bytes one fits: 1 + 2 + 3 in whole numbers, 1 + 2 + 3 / 2 in fractions, rounded up.
    assert time_bound_s(graph, 65, time_limit_s=0)[0] == graph.store_all_s + 5
    assert time_bound_s(graph, 65, time_limit_s=5)[0] == graph.store_all_s + 6
    assert fixed_order_optimum(graph, 65) == graph.store_all_s + 6
    # In any order "large" comes first, and nothing is alive beside it.
    assert time_bound_s(graph, 65, order="free")[0] == graph.store_all_s
    assert time_bound_s(graph, 49) == (math.inf, "no schedule fits: one op alone needs more")


@needs_instances
@pytest.mark.parametrize(
    ("name", "fraction"),
    [("linear32_train", 0.3), ("cm_fcn_8_vgg_train", 0.8), ("cm_resnet50_train", 0.8)],
)
def test_bounds_meet_the_best_known(name, fraction):
    """On these training graphs the bound is the best known time, which is thereby optimal."""
    graph = load(INSTANCES / "dag" / f"{name}.json")
    rows = json.loads((INSTANCES / "dag" / "best-known.json").read_text())
    row = next(r for r in rows if r["graph"] == name and r["budget_fraction"] == fraction)
    bound_s, _ = time_bound_s(graph, row["budget_bytes"], effort=0.6)
    assert bound_s == pytest.approx(row["best_s"], rel=1e-9)


def test_orders_are_named():
    """The class of a bound is said in words, and another order is refused."""
    assert scope_of("fixed") == FIXED_ORDER
    with pytest.raises(SchedsimError, match="'any' is unknown"):
        scope_of("any")


def test_ops_that_take_no_time_do_not_blind_the_bound():
    """Each output is passed on by an op of no time: to drop that is free, to have it again not."""
    num = 4
    ops = []
    for i in range(num):
        ops.append(Op(f"f{i}", time_s=1, reads=(f"y{i - 1}",) if i else (), writes={f"x{i}": 10}))
        ops.append(Op(f"v{i}", reads=(f"x{i}",), writes={f"y{i}": 10}))
    for i in reversed(range(num)):
        gradient = (f"d{i + 1}",) if i + 1 < num else ()
        ops.append(
            Op(f"b{i}", "backward", time_s=1, reads=(f"y{i}", *gradient), writes={f"d{i}": 1})
        )
    graph = Graph("passed on", tuple(ops))
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    least = exhaustive(graph, peak - 10)
    assert least.makespan_s > graph.store_all_s
    bound_s, _ = time_bound_s(graph, peak - 10, effort=2.0)
    assert bound_s == pytest.approx(least.makespan_s)


@pytest.mark.parametrize("seed", range(18))
@pytest.mark.parametrize("planner", ["cuts", "local_search"])
def test_nothing_false_is_said_of_tiny_families(seed, planner):
    """Plans, bounds, and proofs that nothing fits, beside the optimum of the fixed order."""
    graph = tiny_graph(seed)
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    for budget in (peak // 2, 2 * peak // 3, max(0, peak - 1)):
        optimum_s = fixed_order_optimum(graph, budget)
        plan = try_plan(graph, budget, planner, effort=0.1)
        assert plan.lower_bound_s <= optimum_s * (1 + 1e-9)
        assert not plan.proven_infeasible or math.isinf(optimum_s)
        if plan.schedule is not None:
            replayed = simulate(graph, plan.schedule)
            assert replayed.peak_bytes <= budget
            assert replayed.makespan_s >= optimum_s * (1 - 1e-9)
            assert plan.status != "optimal" or replayed.makespan_s <= optimum_s * (1 + 1e-9)
