"""What must be in memory before an op, against all schedules of small graphs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from chains import random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.exhaustive import exhaustive
from schedsim.algorithms.graphs import _memory_need
from schedsim.algorithms.graphs._memory_need import END, NeedSearch, first_runs, largest_need
from schedsim.algorithms.graphs.cuts import cuts
from schedsim.algorithms.graphs.local_search import local_search
from tiers import examples

from schedsim import Graph, Op, Schedule, simulate
from schedsim.plans.effort import Effort


def fan_in(width: int) -> Graph:
    """Two long lines that meet: one end waits while the other line is made from a wide op."""
    ops = [Op("a", writes={"a": 1})]
    ops += [Op(f"w{i}", writes={f"w{i}": 10}) for i in range(width)]
    ops.append(Op("b", reads=tuple(f"w{i}" for i in range(width)), writes={"b": 30}))
    ops.append(Op("c", reads=("a",), writes={"c": 30}))
    ops.append(Op("d", "backward", reads=("b", "c"), writes={"d": 20}))
    return Graph("meeting", tuple(ops))


def test_one_line_waits_for_the_other():
    """By hand: d needs 80 by itself; b needs 60 more than its own 30 before it, c only 31."""
    graph = fan_in(6)
    search = NeedSearch(graph)
    assert max(search.first.need_bytes) == 90  # b: six of 10, and 30
    need = search.need(graph.num_ops - 1, 1000, 10**9)
    assert (need.least_bytes, need.exact) == (90, True)  # b first, then c beside it
    # Where c is as hard to make as b, one of the two waits while the other is made.
    harder = [replace(op, workspace_bytes=45) if op.name == "c" else op for op in graph]
    need = NeedSearch(Graph("harder", tuple(harder))).need(graph.num_ops - 1, 1000, 10**9)
    assert (need.least_bytes, need.exact) == (106, True)  # 1 + 30 + 45 beside b's 30


def test_the_better_of_two_ways_to_one_set_counts():
    """Both orders of two ops go back to the inputs; the dearer one comes to them first."""
    ops = (
        Op("a", reads=("x", "y"), writes={"a": 15}),
        Op("wide", writes={"w": 2}, workspace_bytes=22),
        Op("end", "backward", reads=("a", "w")),
    )
    graph = Graph("two ways", ops, inputs={"x": 5, "y": 15})
    need = NeedSearch(graph).need(2, 1000, 10**9)
    # wide runs last, beside what a wrote: 24 + 15. The other order takes 24 + 20.
    assert (need.least_bytes, need.exact) == (39, True)
    assert exhaustive(graph, 39).feasible
    assert not exhaustive(graph, 38).feasible


def freeing(rng: np.random.Generator, graph: Graph) -> Graph:
    """The same, but that half of the ops after the forward free some of what they read first."""
    ops = [
        replace(op, workspace_bytes=-int(rng.integers(0, sum(op.writes.values()) + 1)))
        if op.phase != "forward" and rng.random() < 0.5
        else op
        for op in graph
    ]
    return replace(graph, ops=tuple(ops))


def joining(rng: np.random.Generator) -> Graph:
    """Lines of ops that meet: most tensors are read once, so that what waits decides the peak."""
    waiting = [f"x{i}" for i in range(int(rng.integers(0, 4)))]
    inputs = {name: int(rng.integers(0, 20)) for name in waiting}
    ops: list[Op] = []
    num_ops = int(rng.integers(4, 8))
    for i in range(num_ops):
        few = min(len(waiting), int(rng.integers(0, 3)))
        reads = tuple(rng.choice(waiting, few, replace=False).tolist())
        waiting = [name for name in waiting if name not in reads or rng.random() < 0.2]
        writes = {f"t{i}.{k}": int(rng.integers(0, 20)) for k in range(int(rng.integers(1, 3)))}
        op = Op(
            f"op{i}",
            ("forward", "backward")[2 * i // num_ops],
            1.0,
            int(rng.integers(0, 9)),
            reads,
            writes,
            once=bool(rng.random() < 0.1),
            in_place={f"t{i}.0": reads[0]} if reads and rng.random() < 0.3 else {},
        )
        ops.append(op)
        waiting += writes
    results = tuple(name for name in waiting if name not in inputs and rng.random() < 0.1)
    return Graph("joining", tuple(ops), inputs, results=results)


def test_no_proof_is_false_on_many_graphs():
    """Where a walk proves more than the first runs do, no schedule has a peak below it."""
    rng = np.random.default_rng(0)
    beyond = 0
    for _ in range(400):
        graph = joining(rng)
        graph = freeing(rng, graph) if rng.random() < 0.5 else graph
        search = NeedSearch(graph)
        needs = [search.need(op, 1000, 10**9) for op in range(END, graph.num_ops)]
        least = max(need.least_bytes for need in needs)
        if least > graph.static_bytes + max(search.first.need_bytes):
            beyond += 1
            assert not exhaustive(graph, least - 1).feasible
    assert beyond > 30


@given(seed=st.integers(0, 10**12))
@settings(max_examples=examples(150), deadline=None)
def test_no_schedule_needs_less(seed):
    """Every op's need, at every stop of its search, holds for graphs with every feature."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, int(rng.integers(2, 8)))
    graph = freeing(rng, graph) if rng.random() < 0.5 else graph
    search = NeedSearch(graph)
    most = int(rng.choice([0, 1, 3, 1000]))
    needs = [search.need(op, most, 10**9) for op in range(graph.num_ops)]
    assert all(
        need.least_bytes >= graph.static_bytes + first
        for need, first in zip(needs, search.first.need_bytes, strict=True)
    )
    needs.append(search.need(END, most, 10**9))
    largest = max(need.least_bytes for need in needs)
    assert not exhaustive(graph, largest - 1).feasible


@given(seed=st.integers(0, 10**12))
@settings(max_examples=examples(50), deadline=None)
def test_where_nothing_lasts_it_is_the_least_memory(seed):
    """Every op made from nothing is a schedule, so that the largest need is enough."""
    rng = np.random.default_rng(seed)
    given_graph = random_graph(rng, int(rng.integers(2, 8)))
    ops = tuple(
        replace(op, once=False, optional=(), in_place={}, saving_workspace_bytes=None)
        for op in given_graph
    )
    made = {name for op in ops for name in op.writes}
    ops = tuple(replace(op, reads=tuple(n for n in op.reads if n in made)) for op in ops)
    graph = Graph("nothing lasts", ops, static_bytes=given_graph.static_bytes)
    search = NeedSearch(graph)
    needs = [search.need(op, 10**6, 10**9) for op in range(END, graph.num_ops)]
    assert all(need.exact for need in needs)
    least = max(need.least_bytes for need in needs)
    assert exhaustive(graph, least).feasible
    assert not exhaustive(graph, least - 1).feasible


def test_it_stops_with_what_is_proven():
    """A search that is stopped has proven no more than a longer one, and says so."""
    rng = np.random.default_rng(3)
    graph = random_graph(rng, 14)
    search = NeedSearch(graph)
    op = int(np.argmax(search.first.need_bytes))
    sizes = [search.need(op, most, 10**9).least_bytes for most in (0, 2, 8, 64, 10**6)]
    assert sizes == sorted(sizes)
    some = search.need(op, 10**6, sizes[0] - 1)
    assert some.num_sets == 0
    assert some.least_bytes == sizes[0]


def test_first_runs_are_looked_at_once(monkeypatch):
    """No limit can stop that work, so that a search and its bound share it."""
    found = []
    find = _memory_need._find_first_runs
    monkeypatch.setattr(_memory_need, "_find_first_runs", lambda g: found.append(g) or find(g))
    graph = random_graph(np.random.default_rng(5), 14)
    budget = max(first_runs(graph).need_bytes) + graph.static_bytes
    for planner in (cuts, local_search):
        planner(graph, budget, effort=0.2)
    assert found == [graph]


def test_planners_say_that_nothing_fits():
    """Where the cuts see nothing, going back from an op proves it, over any schedule."""
    ops = [replace(op, workspace_bytes=45) if op.name == "c" else op for op in fan_in(3)]
    graph = Graph("harder", tuple(ops))
    assert max(first_runs(graph).need_bytes) == 80
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    least = largest_need(graph, 100, Effort(1.0)).least_bytes
    assert 80 < least <= peak
    assert exhaustive(graph, least).feasible
    assert not exhaustive(graph, least - 1).feasible
    for planner in (cuts, local_search):
        for order in ("fixed", "free"):
            plan = planner(graph, least - 1, order=order, effort=0.2)
            assert plan.proven_infeasible
            assert plan.least.floor_bytes == least
            assert str(plan.least.scope) == "any schedule"
            assert math.isfinite(plan.lower_bound_s)


def test_all_results_are_alive_at_the_end():
    """Each op needs little by itself, and may run again; their results are all kept in the end."""
    ops = [Op(f"f{i}", reads=("x",), writes={f"y{i}": 10}) for i in range(5)]
    graph = Graph(
        "five", tuple(ops), {"x": 3}, static_bytes=2, results=("x", *(f"y{i}" for i in range(5)))
    )
    assert max(first_runs(graph).need_bytes) == 13
    need = NeedSearch(graph).need(END, 1000, 10**9)
    assert (need.least_bytes, need.exact) == (55, True)
    assert exhaustive(graph, 55).feasible
    for planner in (cuts, local_search):
        plan = planner(graph, 54, effort=0.1)
        assert plan.proven_infeasible
        assert plan.least.floor_bytes == 55
        assert plan.search.bound_by == "no schedule fits: the results at the end of the step"


def test_before_the_end_the_other_results_wait():
    """By hand: whichever wide op runs last, the other's result of 10 waits beside its 40."""
    ops = tuple(
        op
        for k in "ab"
        for op in (
            Op(f"wide {k}", writes={f"w{k}": 30}),
            Op(f"end {k}", reads=(f"w{k}",), writes={f"y{k}": 10}),
        )
    )
    graph = Graph("two ends", ops, results=("ya", "yb"))
    need = NeedSearch(graph).need(END, 1000, 10**9)
    assert (need.least_bytes, need.exact) == (50, True)
    assert exhaustive(graph, 50).feasible
    assert not exhaustive(graph, 49).feasible


def test_wide_sets_count_for_what_they_take(monkeypatch):
    """A set of hundreds of tensors has hundreds of ways back: the effort covers few such sets."""
    leaves = [Op(f"leaf {i}", reads=("x",), writes={f"t{i}": 1}) for i in range(300)]
    joins = [Op(f"join {k}", reads=tuple(f"t{i}" for i in range(300))) for k in range(200)]
    graph = Graph("joins", (*leaves, *joins), {"x": 1})
    ways = []
    before = NeedSearch._before
    monkeypatch.setattr(
        NeedSearch, "_before", lambda *args: (ways.append(way) or way for way in before(*args))
    )
    effort = Effort(0.4)
    assert largest_need(graph, 320, effort).least_bytes >= 301
    assert len(ways) <= 0.25 * 0.4 * _memory_need._WAYS_PER_UNIT + 300
    assert 0 < effort.spent <= 0.25 * 0.4 + 0.01


def test_a_search_over_wide_sets_ends_with_its_time():
    """No set is gone through where no time is left."""
    leaves = [Op(f"leaf {i}", reads=("x",), writes={f"t{i}": 1}) for i in range(300)]
    graph = Graph("join", (*leaves, Op("join", reads=tuple(f"t{i}" for i in range(300)))), {"x": 1})
    need = NeedSearch(graph).need(300, 10**6, 10**9, Effort(time_limit_s=0.0))
    assert (need.num_sets, need.exact, need.least_bytes) == (0, False, 300)


def two_gradients(num_light: int) -> Graph:
    """Both gradients of a huge tensor are read at once, and each is made from the tensor itself."""
    light = [Op(f"l{i}", reads=(f"l{i - 1}",) * (i > 0), writes={f"l{i}": 1}) for i in range(9)]
    light += [Op(f"l{i}", reads=(f"l{i - 1}",), writes={f"l{i}": 1}) for i in range(9, num_light)]
    ops = (
        *light,
        Op("f", reads=("l3", "l8"), writes={"x": 100}),
        Op("g", reads=("x",), writes={"y": 1}),
        Op("b1", "backward", reads=("x", "y", "l5"), writes={"d1": 100}),
        Op("b2", "backward", reads=("x", "l7"), writes={"d2": 100}),
        Op("sum", "backward", reads=("l1", "l2", "l4", "l6", "d1", "d2"), writes={"d": 1}),
    )
    return Graph("two gradients", ops)


def test_three_heavy_tensors_meet_however_many_light_ones_there_are():
    """The sum needs 205 by itself; the later of its two gradients is made beside 200 others."""
    graph = two_gradients(60)
    least = NeedSearch(graph, 50).need(graph.num_ops - 1, 32, 260)
    assert least.least_bytes > 260
    assert not least.exact
    found = largest_need(graph, 280, Effort(0.0))
    assert found.least_bytes > 280  # without any work for all the light ones
    assert max(first_runs(graph).need_bytes) < 210
    assert local_search(graph, 280, effort=0.05).proven_infeasible
    assert local_search(graph, 330, effort=0.05).feasible


@given(seed=st.integers(0, 10**12))
@settings(max_examples=examples(60), deadline=None)
def test_heavy_tensors_alone_need_no_more(seed):
    """What is left out makes no need larger, and is never called the exact least."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, int(rng.integers(2, 9)))
    heavy = NeedSearch(graph, int(rng.integers(1, 15)))
    whole = NeedSearch(graph)
    for op in (*range(graph.num_ops), *([END] if whole.results else [])):
        less = heavy.need(op, 2000, 10**9)
        full = whole.need(op, 2000, 10**9)
        assert less.least_bytes <= full.least_bytes or not full.exact
        assert not less.exact


def waiting_gradients(num_layers: int) -> Graph:
    """A step whose gradients all wait for the last one; most of them are light."""
    ops: list[Op] = [Op("x0", reads=("x",), writes={"x0": 20})]
    for i in range(1, num_layers + 1):
        ops.append(Op(f"a{i}", reads=(f"x{i - 1}",), writes={f"a{i}": 60}))
        ops.append(Op(f"x{i}", reads=(f"a{i}",), writes={f"x{i}": 20}))
    below, results = f"x{num_layers}", []
    for i in range(num_layers, 0, -1):
        ops.append(Op(f"d{i}", "backward", reads=(f"a{i}", below), writes={f"d{i}": 60}))
        ops.append(Op(f"w{i}", "backward", reads=(f"d{i}", f"x{i - 1}"), writes={f"w{i}": 50}))
        ops += [
            Op(f"b{i}.{k}", "backward", reads=(f"d{i}",), writes={f"b{i}.{k}": 1}) for k in range(8)
        ]
        ops.append(Op(f"g{i}", "backward", reads=(f"d{i}",), writes={f"g{i}": 20}))
        results += [f"w{i}", *(f"b{i}.{k}" for k in range(8))]
        below = f"g{i}"
    return Graph("waiting gradients", tuple(ops), {"x": 20}, results=tuple(results))


def test_going_back_from_the_end_with_the_heavier_tensors_proves_more():
    """The last wide gradient waits for its two wide tensors; many orders of light ones hide it."""
    graph = waiting_gradients(3)
    least = local_search(graph, 1, effort=0.5).min_feasible_bytes
    assert least is not None
    whole = NeedSearch(graph).need(END, 1000, 10**9).least_bytes
    found = largest_need(graph, least - 1, Effort(0.5)).least_bytes
    assert whole < found <= least
