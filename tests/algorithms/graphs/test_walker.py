"""One annealing of the schedule of a graph, with the best it has seen."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from schedsim.algorithms.graphs._cut_search import CutSearch
from schedsim.algorithms.graphs._packed_graph import pack_graph
from schedsim.algorithms.graphs._profile_record import LARGEST
from schedsim.algorithms.graphs._walker import GraphWalker
from schedsim.algorithms.graphs.bounds import least_memory_bytes
from schedsim.algorithms.graphs.local_search import local_search
from training_graphs import random_training_graph

from schedsim import Graph, Schedule, simulate
from schedsim.workloads.synthetic_graphs import layered


def peak_of(graph: Graph) -> int:
    return simulate(graph, Schedule.store_all(graph)).peak_bytes


def wide_graph(num: int = 40) -> Graph:
    """A training graph whose bound is not met, so that the search goes on to its end."""
    return random_training_graph(np.random.default_rng(5), num)


def test_a_failure_in_a_thread_is_not_lost(monkeypatch):
    """Neither that of the bound nor that of a walker; and nobody searches on for an hour."""
    halts, before = [], set(threading.enumerate())
    halt = CutSearch.halt
    monkeypatch.setattr(CutSearch, "halt", lambda self: halts.append(self) or halt(self))

    def failing(*args):
        raise ZeroDivisionError("on purpose")

    graph = wide_graph()
    budget = (peak_of(graph) + 3 * least_memory_bytes(graph)[0]) // 4
    for owner, name in ((CutSearch, "solve_milps"), (GraphWalker, "anneal")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, failing)
            with pytest.raises(ZeroDivisionError, match="on purpose"):
                local_search(graph, budget, effort=1e9, time_limit_s=3000)
    assert len(set(halts)) == 2  # the bound's thread, too
    left = set(threading.enumerate()) - before
    for one in left:
        one.join(60)
    assert not any(one.is_alive() for one in left)


def test_a_walker_comes_down_step_by_step():
    """Its aim falls to the limit; what fits on the way, and not the limit, is no plan."""
    graph = layered(120)
    budget = int(0.75 * peak_of(graph))
    packed = pack_graph(graph.arrays)
    line = np.arange(graph.num_ops)
    walker = GraphWalker.of(graph, packed, line, number=1, seed=0, rules=(budget, False))
    assert walker.steps_down
    aims = []
    for share in np.linspace(0.0, 1.0, 200, endpoint=False):
        walker.anneal(share, 1e-4, 2**62)
        aims.append(walker.aim_bytes)
        if walker.best_s < np.inf:
            break
        assert walker.best_runs.size == 0
    assert aims == sorted(aims, reverse=True)
    assert peak_of(graph) > aims[0] > budget == aims[-1]
    assert len(set(aims)) > 3
    found = simulate(graph, Schedule(graph.op_names, walker.best_runs))
    assert found.peak_bytes <= budget
    assert found.makespan_s == pytest.approx(walker.best_s)


@pytest.mark.slow
def test_what_is_above_the_limit_counts_at_every_run():
    """A plan where the peak alone shows no way down: many runs share it, a move lowers one."""
    graph = layered(500, 1)
    budget = int(0.4 * peak_of(graph))
    plan = local_search(graph, budget, effort=1.2)
    assert plan.feasible
    assert simulate(graph, plan.schedule).peak_bytes <= budget


def test_a_schedule_that_leaves_the_limit_finds_back():
    """Bytes are cheap at first, so that it does leave it; many runs are above the limit then."""
    graph = layered(500, 1)
    budget = int(0.45 * peak_of(graph))
    packed, line = pack_graph(graph.arrays), np.arange(graph.num_ops)
    walker = GraphWalker.of(graph, packed, line, number=0, seed=0, rules=(budget, False))
    walker.sum_excess()
    walker.end_greedy()
    walker.begin(0)
    while walker.best_s == np.inf:
        walker.anneal(0.3, 0.02, 2**62)
    first_s = walker.best_s
    walker.rules.price[0] = walker.rules.price[1]
    walker.anneal(0.6, 0.02, 2000)
    assert walker.profile.tree[1, LARGEST] > budget
    walker.anneal(0.6, 0.5, 2**62)
    assert walker.best_s < first_s
    assert walker.profile.tree[1, LARGEST] < 1.02 * budget


def test_the_sum_is_for_walkers_of_up_to_thousands_of_ops():
    """Asked for twice, a walker warms once; a large graph keeps to the peak."""
    warmth = {}
    for num_ops in (30, 2600):
        graph = layered(num_ops)
        packed, line = pack_graph(graph.arrays), np.arange(graph.num_ops)
        walker = GraphWalker.of(graph, packed, line, number=1, seed=0, rules=(10, False))
        walker.warmer, before = 3.0, walker.warm_bytes
        walker.sum_excess()
        walker.sum_excess()
        warmth[num_ops] = walker.rules.summed, walker.warm_bytes / before
    assert warmth == {30: (True, 3.0), 2600: (False, 1.0)}


def test_moves_are_as_usual_again_where_most_walkers_fit():
    """The sum stays for the time in which nothing fits; repairs and steps down are back."""
    graph = layered(500)
    packed, line = pack_graph(graph.arrays), np.arange(graph.num_ops)
    walker = GraphWalker.of(graph, packed, line, number=1, seed=0, rules=(10, False))
    usual, steps_down = walker.rules, walker.steps_down
    walker.move_as_usual()
    assert walker.rules is usual
    walker.sum_excess()
    assert (walker.rules.lasting, walker.rules.thorough, walker.steps_down) == (True, 0.0, False)
    walker.move_as_usual()
    assert (walker.rules.summed, walker.rules.lasting) == (True, False)
    assert walker.rules.thorough == usual.thorough > 0
    assert walker.rules.exchanges == usual.exchanges
    assert walker.steps_down
    assert steps_down


def test_what_is_taken_up_in_the_middle_of_a_round_is_repaired():
    """A schedule over the limit is brought within it first, however far the round has come."""
    graph = layered(120)
    budget = int(0.75 * peak_of(graph))
    packed, line = pack_graph(graph.arrays), np.arange(graph.num_ops)
    walker = GraphWalker.of(graph, packed, line, number=2, seed=0, rules=(budget, False))
    walker.begin(0)
    walker.take(line, greedy=True)
    moves = 0
    for share in np.linspace(0.4, 0.5, 20):
        moves += walker.anneal(share, 1e-3, 2**62)[1]
        if walker.best_s < np.inf:
            break
    assert walker.best_s < np.inf
    assert moves == 0


def test_exchanges_are_for_graphs_of_hundreds_of_ops():
    """On more ops nearly all of them fail."""
    shares = []
    for num_ops in (30, 600):
        graph = layered(num_ops)
        packed, line = pack_graph(graph.arrays), np.arange(graph.num_ops)
        walker = GraphWalker.of(graph, packed, line, number=1, seed=0, rules=(10, False))
        shares.append(walker.rules.exchanges)
    assert shares[0] > 0 == shares[1]
