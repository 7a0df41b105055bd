"""The search for cuts, and the schedules that are read off them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from chains import random_graph
from fixed_order import fixed_order_optimum
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.graphs import _cut_search
from schedsim.algorithms.graphs._cut_search import CutSearch
from schedsim.algorithms.graphs._cut_table import CutTable
from schedsim.algorithms.graphs._lazy_schedule import lazy_runs
from schedsim.algorithms.graphs.bounds import least_memory_bytes
from tiers import examples
from training_graphs import random_training_graph, unit_training_chain

from schedsim import Chain, Graph, Op, Schedule, simulate
from schedsim.plans.effort import Effort
from schedsim.workloads._synthetic_network import SyntheticNetwork


def peak_of(graph: Graph) -> int:
    return simulate(graph, Schedule.store_all(graph)).peak_bytes


def wide() -> Graph:
    return random_training_graph(np.random.default_rng(5), 20)


@given(seed=st.integers(0, 10**9), num=st.integers(1, 9))
@settings(max_examples=examples(80), deadline=None)
def test_what_a_cut_evicts_is_recomputed_behind_it(seed, num):
    """Legal, first runs in order, and nobody reads across a cut what the cut does not keep."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, num)
    table = CutTable(graph, 10**6, "fixed")
    cuts = [table.cut(op) for op in range(num) if rng.random() < 0.4]
    names = graph.arrays.tensor_names
    alive = [rng.random(len(names)) < 0.5 for _ in cuts]
    runs = lazy_runs(graph, cuts, alive)
    if runs is None:
        assert any(op.once for op in graph.ops)
        return
    simulate(graph, Schedule(graph.op_names, runs))  # raises where it is illegal
    assert list(dict.fromkeys(runs)) == list(range(num))
    producer = {tensor: op for op in graph.ops for tensor in op.writes}
    for cut, kept in zip(cuts, alive, strict=True):
        at = runs.index(cut.op)
        made_since: set[str] = set()
        for run in runs[at + 1 :]:
            for tensor in graph.ops[run].reads:
                maker = producer.get(tensor)
                across = tensor not in made_since
                if across and maker is not None and not maker.once:
                    index = names.index(tensor)
                    assert kept[index] or cut.given[index], (tensor, cut.op)
            made_since |= set(graph.ops[run].writes)


def test_keeping_everything_repeats_nothing():
    """And so does a step without cuts."""
    graph = wide()
    table = CutTable(graph, 10**6, "fixed")
    cuts = [table.cut(op) for op in (5, 12)]
    everything = np.ones(graph.arrays.tensor_bytes.size, dtype=bool)
    assert lazy_runs(graph, cuts, [everything] * 2) == list(range(graph.num_ops))
    assert lazy_runs(graph, [], []) == list(range(graph.num_ops))


def test_what_a_once_op_needs_back_is_no_schedule():
    """f reads what k, which runs once, wrote; k cannot run again, but its output is never given up.

    A graph where the evicted tensor's own op runs once keeps that tensor.
    """
    ops = (
        Op("k", writes={"x": 1}, once=True),
        Op("f", reads=("x",), writes={"y": 1}),
        Op("l", "loss"),
        Op("b", "backward", reads=("y",)),
    )
    graph = Graph("once", ops)
    cut = CutTable(graph, 10, "fixed").cut(2)
    assert lazy_runs(graph, [cut], [np.zeros(2, dtype=bool)]) == [0, 1, 2, 1, 3]


def searched(graph: Graph, budget: int, order="fixed", work=5.0) -> CutSearch:
    return CutSearch(graph, budget, order, Effort(work))


def test_a_better_bound_replaces_a_worse_one():
    """With where it comes from; an infinite one says that nothing fits, and ends the search."""
    search = searched(wide(), 100)
    assert search.bound_s == search.graph.store_all_s
    search.keep(3.0, "first", (1,))
    search.keep(2.0, "worse", (2,))
    assert (search.extra_s, search.how, search.proved_at) == (3.0, "first", (1,))
    assert search.bound_s == search.graph.store_all_s + 3
    assert not search.is_done()
    search.keep(math.inf, "impossible", (3, 4))
    assert search.is_done()
    assert search.how == "no schedule fits: impossible"
    assert search.proved_at == (3, 4)


def test_only_ops_with_a_sure_place_are_cut_together():
    """In any order, neither of two ops without a path between them is surely first."""
    ops = (
        Op("f", writes={"x": 1}),
        Op("g", writes={"y": 1}),
        Op("h", reads=("x", "y")),
    )
    free, fixed = (searched(Graph("vee", ops), 100, order) for order in ("free", "fixed"))
    assert fixed.is_related(0, [1, 2])
    assert not free.is_related(0, [1])
    assert free.is_related(0, [2])
    chosen = [0]
    free.choose(chosen, [1, 2, 2])
    assert chosen == [0, 2]


def test_cuts_are_spread_over_the_step_worst_first():
    """One of each stretch where something must go."""
    graph = unit_training_chain(30)
    search = searched(graph, 12)
    search.knapsacks()
    found = search.places.spread(4)
    assert 2 <= len(found) <= 4
    worth = search.places.promise[found].tolist()
    assert worth == sorted(worth, reverse=True)
    some = np.flatnonzero(search.places.promise > 0.15 * search.places.promise.max())
    edges = np.linspace(some[0], some[-1] + 1, 5).astype(int)
    stretches = [int(np.searchsorted(edges, op, side="right")) for op in found]
    assert len(set(stretches)) == len(found)
    assert int(np.argmax(search.places.promise)) == found[0]
    nothing = searched(graph, 10**6)
    nothing.knapsacks()
    assert nothing.spread(4) == []


def tight_chain(num_stages):
    """Equal stages; each backward takes twice as long as its forward."""
    ones, twos = [1] * num_stages, [2] * num_stages
    return Chain.from_arrays(
        "tight", 1, forward_s=ones, backward_s=twos, output_bytes=ones, saved_bytes=twos
    )


def test_cuts_go_where_memory_has_a_price():
    """On a tight chain the forward's has none; intervals of many lengths prove more there."""
    chain = tight_chain(12)
    search = searched(chain.graph, 8)
    search.knapsacks()
    assert search.places.prices == {}
    assert not search.places.doubling
    search.relaxations()
    assert search.places.doubling
    priced = [op for op, price in search.places.prices.items() if price > 0]
    assert min(priced) > 12
    assert min(search.places.placed(12)) >= min(priced)
    loose = searched(chain.graph, 34)
    loose.knapsacks()
    loose.relaxations()
    assert not loose.doubling


def test_a_halted_search_begins_nothing_more():
    """The bound of the knapsacks stays."""
    graph = wide()
    whole = searched(graph, peak_of(graph) * 7 // 10)
    whole.run()
    halted = searched(graph, peak_of(graph) * 7 // 10)
    halted.knapsacks()
    known = halted.extra_s
    halted.halt()
    halted.solve_milps()
    assert halted.extra_s == known < whole.extra_s
    assert halted.suggested == []


def test_what_is_suggested_is_replayed():
    """A schedule that fits is kept if it is faster; of another, the place over budget is noted."""
    graph = unit_training_chain(6)
    runs = list(range(graph.num_ops))
    loose = searched(graph, 100)
    loose.look_at([0, *runs])
    assert loose.best_s == graph.store_all_s + 1
    loose.look_at(runs)
    assert loose.best_s == graph.store_all_s
    loose.look_at([0, *runs])
    assert loose.best_s == graph.store_all_s
    assert loose.worst is None
    assert len(loose.suggested) == 3
    peak = peak_of(graph)
    tight = searched(graph, peak - 1)
    tight.look_at(runs)
    assert tight.best is None
    simulation = simulate(graph, Schedule.store_all(graph))
    assert tight.worst == (simulation.peak_run, ())
    # Beside a repeat: the run of f0 before the peak is over budget too, and so is named.
    tight.look_at([*runs[: simulation.peak_run], 0, *runs[simulation.peak_run :]])
    assert tight.worst is not None
    assert tight.worst[0] == simulation.peak_run
    tight.look_at(None)
    assert len(tight.suggested) == 2


@pytest.mark.parametrize("order", ["fixed", "free"])
def test_no_effort_leaves_the_knapsacks(order):
    """They always run; their bound stands beside that of a search with effort."""
    graph = wide()
    budget = peak_of(graph) * 7 // 10
    none, some = searched(graph, budget, order, 0.0), searched(graph, budget, order)
    none.run()
    some.run()
    assert 0 < none.extra_s <= some.extra_s
    assert none.how.startswith("knapsack at ")
    assert none.suggested == []


def test_no_relaxation_is_begun_that_outlasts_the_clock(monkeypatch):
    """The solver looks at no clock before it has read and presolved the MILP: 8 s over, once."""
    graph = wide()
    search = CutSearch(graph, int(0.5 * peak_of(graph)), "fixed", Effort(time_limit_s=60))
    search.knapsacks()
    op = search.places.spread(1)[0]
    assert search.solve([search.places.cut(op)], 0.5, integral=True) is not None
    monkeypatch.setattr(_cut_search, "relaxation_work", lambda num_nonzeros: 61.0)
    assert search.solve([search.places.cut(op)], 0.5, integral=True) is None
    assert search.effort.ended_by == "clock"
    search.bound_at = {op: 1.0}
    search.several_cuts()
    search.single_milps()


def test_a_known_bound_is_no_rule_for_other_cuts():
    """F0 runs three times again behind the cut at B3, which counts it once: 5 s there, 9 s truly.

    A search that had proven 9 s by other cuts asked the program of these for no less, where 9 s
    cannot be counted, and took its answer, 10 s, for a bound.
    """
    chain = Chain.from_arrays(
        "thrice",
        1,
        forward_s=[2, 3, 3, 3],
        backward_s=[1, 1, 1, 3],
        output_bytes=[2, 2, 1, 2],
        saved_bytes=[4, 4, 3, 4],
    )
    search = searched(chain.graph, 11)
    search.run()
    assert fixed_order_optimum(chain.graph, 11) == chain.store_all_s + 9
    assert search.extra_s <= 9


def small_tree() -> Graph:
    """A tree that doubles twice and is joined again, as a step of 21 ops."""
    rng = np.random.default_rng(0)
    net = SyntheticNetwork(rng)
    front = [net.op(size=2)]
    for _ in range(2):
        front = [
            net.op(op, size=rng.uniform(0.3, 2), time=rng.uniform(0.3, 2))
            for op in front
            for _ in range(2)
        ]
    while len(front) > 1:
        front = [net.op(*front[i : i + 2], size=0.5, time=0.3) for i in range(0, len(front), 2)]
    return net.training("tree")


def test_a_search_that_is_stuck_takes_all_cuts():
    """Three cuts prove 25.0 % and suggest no other; all eleven prove 29.8 % of at most 41.7 %."""
    graph = small_tree()
    least = least_memory_bytes(graph)[0]
    budget = int(least + 0.3 * (peak_of(graph) - least))
    search = CutSearch(graph, budget, "fixed", Effort(4.0))
    search.run()
    # The schedule that local search finds, which is the optimum.
    assert 0.29 < search.extra_s / graph.store_all_s < 0.4168
    assert len(search.proved_at) == 11
