"""The search for cuts, and the schedules that are read off them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fixed_order import fixed_order_optimum
from schedsim.algorithms.graphs import _cut_search, _milp
from schedsim.algorithms.graphs._cut_search import CutSearch
from schedsim.algorithms.graphs.bounds import least_memory_bytes
from training_graphs import random_training_graph, unit_training_chain

from schedsim import Chain, Graph, Schedule, simulate
from schedsim.plans.effort import Effort
from schedsim.workloads._synthetic_network import SyntheticNetwork


def peak_of(graph: Graph) -> int:
    return simulate(graph, Schedule.store_all(graph)).peak_bytes


def wide() -> Graph:
    return random_training_graph(np.random.default_rng(5), 20)


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


def tight_tree() -> CutSearch:
    """Of the tree, at 30 % between the least memory and the store-all peak.

    The schedule that local search finds there, which is the optimum, takes 41.67 % more.
    """
    graph = small_tree()
    least = least_memory_bytes(graph)[0]
    return searched(graph, int(least + 0.3 * (peak_of(graph) - least)))


def test_a_search_that_is_stuck_takes_all_cuts():
    """From a single cut on, three prove 25.0 % and suggest no other; all eleven prove 29.8 %."""
    search = tight_tree()
    search.knapsacks()
    search.single_milps()
    search.several_cuts()
    assert 0.29 < search.extra_s / search.graph.store_all_s < 0.4168
    assert len(search.proved_at) == 11


def test_whole_numbers_begin_where_memory_has_a_price(monkeypatch):
    """After single cuts, those with a price: three of them prove as much as all eleven."""
    search = tight_tree()
    solved = []

    def noted(cuts, *args, **kwargs):
        if kwargs["integral"] and len(cuts) > 1:
            solved.append([cut.op for cut in cuts])
        return CutSearch.solve(search, cuts, *args, **kwargs)

    monkeypatch.setattr(search, "solve", noted)
    search.run()
    assert len(solved[0]) == len(search.proved_at) == 3
    assert 0.29 < search.extra_s / search.graph.store_all_s < 0.4168


def test_a_program_too_large_for_the_effort_is_left_at_its_relaxation(monkeypatch):
    """Whole numbers take four times the iterations of the relaxation: here more than is left."""
    search = tight_tree()
    search.knapsacks()
    cuts = search.cuts_at(search.places.spread(3))
    relaxed = tight_tree()
    relaxed.knapsacks()
    monkeypatch.setattr(_milp, "_PIVOT", 10.0)
    monkeypatch.setattr(search.effort, "spent", 0.0)
    known = search.solve(cuts, 0.8, integral=True)
    assert known == relaxed.solve(relaxed.cuts_at([cut.op for cut in cuts]), 0.8, integral=False)
    assert "relaxed" in search.how
