"""From a schedule to faster ones, by one program after the other: when it ends, what it takes."""

from __future__ import annotations

import numpy as np
from schedsim.algorithms.graphs._merge_search import MergeSearch
from schedsim.algorithms.graphs._program_search import ProgramSearch
from schedsim.algorithms.graphs._replan_search import ReplanSearch

from schedsim import Graph, Op
from schedsim.plans.effort import Effort


def wasteful() -> tuple[Graph, list[np.ndarray]]:
    """A step, and schedules of it with two repeats that are not needed, with one, and without."""
    graph = Graph(
        "step",
        (
            Op("a", time_s=1, writes={"x": 1}),
            Op("b", time_s=1, reads=("x",), writes={"y": 1}),
            Op("c", time_s=1, reads=("x", "y")),
        ),
    )
    return graph, [np.array(runs) for runs in ([0, 1, 0, 1, 2], [0, 1, 0, 2], [0, 1, 2])]


class Listed(ProgramSearch):
    """Each program comes to the next of some schedules, and takes a unit of work."""

    def __init__(self, graph, budget_bytes, lines):
        super().__init__(graph, budget_bytes, lines[0], seed=0)
        self.lines = [*lines[1:]]

    def _solve_next(self, effort):
        self._idle += 1
        if self.lines:
            self._take(self.lines.pop(0))
        else:
            self.is_done = True
        return 1.0


def test_a_search_goes_on_from_what_is_better():
    graph, lines = wasteful()
    search = Listed(graph, 10, [lines[1], lines[0], lines[2]])  # a slower one is left out
    effort, reports = Effort(10.0), []
    search.run(effort, 0.0, report=reports.append)
    assert reports == [4, 3, 3]
    assert (search.best_s, search.best_runs.tolist()) == (3, [0, 1, 2])
    assert (search.rank, search.is_done, effort.spent) == ((0, 3), True, 3.0)


def test_what_does_not_fit_is_left_out():
    graph, lines = wasteful()
    search = Listed(graph, 1, lines[::2])  # the simulator needs two bytes
    search.run(Effort(10.0), 0.0)
    assert search.best_runs.tolist() == lines[0].tolist()


def test_a_search_ends_with_its_work_and_where_the_time_is_enough():
    graph, lines = wasteful()
    for effort, enough_s, found in (
        (Effort(1.0), 0.0, 4),
        (Effort(9.0), 4.0, 4),
        (Effort(9.0), 5.0, 5),
    ):
        search = Listed(graph, 10, lines)
        search.run(effort, enough_s)
        assert search.best_s == found


def test_a_search_that_is_halted_solves_nothing_more():
    graph, lines = wasteful()
    for search in (
        ReplanSearch(graph, 10, lines[0], seed=0),
        MergeSearch(graph, 10, lines[:1], seed=0),
    ):
        effort = Effort(1e6)
        search.run(effort, 0.0, is_halted=lambda: True)
        assert (effort.spent, search.best_runs.tolist()) == (0.0, lines[0].tolist())
