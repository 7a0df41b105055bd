"""Mixtures of schedules: never slower than the best of them, and within the budget."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from schedsim.algorithms.graphs import _merge_search
from schedsim.algorithms.graphs._merge_search import MergeSearch
from schedsim.algorithms.graphs._replan_search import ReplanSearch
from schedsim.algorithms.graphs.local_search import local_search

from schedsim import Graph, Op, Schedule, simulate
from schedsim.plans.effort import Effort
from schedsim.workloads.synthetic_graphs import SYNTHETIC_GRAPHS
from tests.helpers.chains import random_graph, random_schedule


def two_pairs() -> Graph:
    """Two times, one of a dear and a cheap output is kept beside the other ops: no more fits."""
    ops = [Op("a", time_s=1, writes={"x": 1})]
    for k in "12":
        ops += [
            Op(f"cheap{k}", time_s=1, reads=("x",), writes={f"c{k}": 2}),
            Op(f"dear{k}", time_s=5, reads=("x",), writes={f"d{k}": 2}),
            Op(f"full{k}", time_s=1, reads=("x",), writes={f"f{k}": 4}),
            Op(f"end{k}", "backward", time_s=1, reads=(f"c{k}", f"d{k}", f"f{k}")),
        ]
    return Graph("pairs", (*ops, Op("last", "backward", time_s=1, reads=("x",))))


def test_the_best_of_two_schedules_is_put_together():
    graph = two_pairs()
    one = "a cheap1 dear1 full1 cheap1 end1 cheap2 dear2 full2 dear2 end2 last"
    other = "a cheap1 dear1 full1 dear1 end1 cheap2 dear2 full2 cheap2 end2 last"
    lines = [
        Schedule.from_names(names.split()).bind(graph).astype(np.int64) for names in (one, other)
    ]
    budget = simulate(graph, Schedule(graph.op_names, lines[0])).peak_bytes
    assert simulate(graph, Schedule(graph.op_names, lines[1])).peak_bytes == budget
    search = MergeSearch(graph, budget, lines, seed=0)
    search.run(Effort(1.0), 0.0)
    assert search.is_done
    assert search.best_s <= graph.store_all_s + 2
    best = simulate(graph, Schedule(graph.op_names, search.best_runs))
    assert (best.makespan_s, best.peak_bytes <= budget) == (search.best_s, True)


@pytest.mark.parametrize("seed", range(2))
def test_what_is_found_fits_and_is_no_slower(seed):
    """Where outputs take over storage or are optional, the program is not exact."""
    rng = np.random.default_rng(seed)
    for _ in range(15):
        graph = random_graph(rng, int(rng.integers(3, 12)))
        lines = [random_schedule(rng, graph).bind(graph).astype(np.int64) for _ in range(3)]
        at_first = simulate(graph, Schedule(graph.op_names, lines[0]))
        search = MergeSearch(graph, at_first.peak_bytes, lines, seed=seed)
        search.run(Effort(0.2), 0.0)
        found = simulate(graph, Schedule(graph.op_names, search.best_runs))
        assert found.peak_bytes <= at_first.peak_bytes
        assert found.makespan_s == search.best_s <= at_first.makespan_s


def test_inputs_of_the_graph_may_be_kept_for_longer():
    """Otherwise what reads them again later could not be taken over from another schedule."""
    ops = (
        Op("a", time_s=1, reads=("in",), writes={"x": 4}),
        Op("b", time_s=1, reads=("x",), writes={"y": 1}),
        Op("c", time_s=1, writes={"z": 2}),
        Op("d", time_s=1, reads=("x", "y", "z")),
    )
    graph = Graph("inputs", ops, {"in": 1})
    lines = [np.array(line, dtype=np.int64) for line in ([0, 1, 2, 0, 1, 3], [0, 1, 2, 0, 3])]
    search = MergeSearch(graph, 8, lines, seed=0)
    search.run(Effort(1.0), 0.0)
    assert (search.best_s, search.is_done) == (4, True)


@pytest.mark.slow
def test_walkers_schedules_are_merged(monkeypatch):
    """The plan is that of the mixture, which is faster than those of all walkers."""
    graph = SYNTHETIC_GRAPHS["bidirectional"](130, 2)
    budget = int(0.35 * simulate(graph, Schedule.store_all(graph)).peak_bytes)
    plan = local_search(graph, budget, effort=1.5, seed=1)
    assert simulate(graph, plan.schedule).peak_bytes <= budget
    assert local_search(graph, budget, effort=1.5, seed=1, num_threads=1).schedule == plan.schedule
    monkeypatch.setattr(MergeSearch, "run", lambda *_, **__: None)
    monkeypatch.setattr(ReplanSearch, "run", lambda *_, **__: None)
    without = local_search(graph, budget, effort=1.5, seed=1)
    assert plan.makespan_s < without.makespan_s


def test_a_search_ends_where_nothing_changes():
    graph = two_pairs()
    line = Schedule.store_all(graph).bind(graph).astype(np.int64)
    search = MergeSearch(graph, 10**6, [line, line], seed=0)
    effort = Effort(1e6)
    search.run(effort, 0.0)
    assert search.is_done
    assert effort.spent < 1.0


def test_a_program_takes_no_more_than_what_is_left():
    """A large program in the last of the work would take several times of all of it."""
    graph = SYNTHETIC_GRAPHS["butterfly"](130, 0)
    line = Schedule.store_all(graph).bind(graph).astype(np.int64)
    search = MergeSearch(graph, 10**9, [line, line], seed=0)
    search.run(Effort(0.02), 0.0)
    assert search._free_nonzeros < 17_000  # the solver takes some 0.02 s


def test_programs_cost_more_where_the_first_node_of_one_did_not_end():
    """Of as many non-zeros, some graphs' programs are solved in a fraction of what others' take."""
    graph = SYNTHETIC_GRAPHS["butterfly"](130, 0)
    line = Schedule.store_all(graph).bind(graph).astype(np.int64)
    search = MergeSearch(graph, 10**9, [line, line], seed=0)
    size = 2 * _merge_search._NONZEROS
    easy, limited, hard = (search._work(size, solved) for solved in (True, False, True))
    assert 0 < easy < hard < limited
    assert search._work(4 * size, True) > 16 * hard


def test_a_program_of_all_choices_that_did_not_end_is_not_solved_again(monkeypatch):
    """It would come out the same: the next one leaves some choices as they are."""
    graph = SYNTHETIC_GRAPHS["butterfly"](130, 0)
    line = Schedule.store_all(graph).bind(graph).astype(np.int64)
    search = MergeSearch(graph, 10**9, [line, line], seed=0)
    search._free_nonzeros = 10 * search._weight.sum()
    monkeypatch.setattr("scipy.optimize.milp", lambda *_, **__: SimpleNamespace(status=1, x=None))
    search._solve(search._free(), None)
    assert search._free_nonzeros < search._largest < search._weight.sum()
