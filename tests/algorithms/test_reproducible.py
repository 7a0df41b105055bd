"""The same seed and the same effort: the same schedule, whatever the machine is doing."""

from __future__ import annotations

import importlib.util
import itertools
import threading
import tokenize
from pathlib import Path

import numpy as np
import pytest
import schedsim.algorithms
from chains import random_chain
from schedsim.algorithms import PLANNERS, get_planner
from schedsim.algorithms.graphs.graph_frontier import graph_frontier
from training_graphs import random_training_graph

from schedsim import Schedule, simulate

GRAPH = random_training_graph(np.random.default_rng(5), 14)
SMALL = random_training_graph(np.random.default_rng(5), 6)
CHAIN = random_chain(np.random.default_rng(5), 10)


def searching(kind):
    """Planners of workloads of that kind that take an effort."""
    for name, info in PLANNERS.items():
        needs_solver = name == "moccasin" and importlib.util.find_spec("ortools") is None
        if kind in info.kinds and "effort" in info.options() and not needs_solver:
            yield name, info


class Load:
    """Threads that keep the cores and the interpreter busy."""

    def __enter__(self):
        self.ended = threading.Event()
        self.threads = [threading.Thread(target=self._spin) for _ in range(1)]
        for thread in self.threads:
            thread.start()

    def _spin(self):
        while not self.ended.is_set():
            sum(range(1000))

    def __exit__(self, *_):
        self.ended.set()
        for thread in self.threads:
            thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["graph", "chain"])
def test_every_planner_is_the_same_on_a_busy_machine(kind):
    """With one thread and in peace, and with two under load; and each plan says that it is."""
    tried = 0
    for _, info in searching(kind):
        workload = GRAPH if kind == "graph" else CHAIN
        if info.name in ("checkmate", "poet"):  # their first node is always finished
            workload = SMALL
        peak = simulate(workload, Schedule.store_all(workload)).peak_bytes
        taken, options = info.options(), {"effort": 0.03}
        if "link" in taken and info.needs_link:
            options["link"] = f"{max(1, peak // 4)}B/s"
        if "seed" in taken:
            options["seed"] = 3
        if info.name == "hierarchical":
            continue  # no line of blocks: it has a test of its own
        planner = info.load()
        one, two = ({"num_threads": n} if "num_threads" in taken else {} for n in (1, 2))
        first = planner(workload, int(0.7 * peak), **options, **one)
        with Load():
            again = planner(workload, int(0.7 * peak), **options, **two)
        assert first.search.reproducible, info.name
        assert (again.schedule, again.lower_bound_s) == (first.schedule, first.lower_bound_s), (
            info.name
        )
        assert again.search.num_moves == first.search.num_moves, info.name
        tried += 1
    assert tried >= 2


@pytest.mark.slow
def test_curves_are_the_same_on_a_busy_machine():
    """Every point and every bound."""
    first = graph_frontier(GRAPH, effort=0.2, num_points=4, seed=1)
    with Load():
        again = graph_frontier(GRAPH, effort=0.2, num_points=4, seed=1)
    assert first.reproducible
    assert (again.points, again.bounds) == (first.points, first.bounds)
    assert [one.schedule for one in again.points] == [one.schedule for one in first.points]


def test_a_plan_that_the_clock_ended_says_so():
    """Seconds alone, and a watchdog that comes before the work is done."""
    graph = random_training_graph(np.random.default_rng(8), 60)
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    local_search = get_planner("local_search").load()
    for options in ({"time_limit_s": 0.2}, {"effort": 1e6, "time_limit_s": 0.2}):
        plan = local_search(graph, int(0.5 * peak), **options)
        assert plan.status != "optimal"
        assert plan.search.ended_by == "clock"
        assert not plan.search.reproducible


def test_a_stop_criterion_ends_a_search():
    """As soon as there is a schedule that it likes; what is found is that good."""
    from schedsim.plans.effort import Effort

    graph = random_training_graph(np.random.default_rng(8), 60)
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    good_s = 2 * graph.store_all_s
    effort = Effort(1e6, stop=lambda best_s: best_s <= good_s)
    plan = get_planner("local_search").load()(graph, int(0.8 * peak), effort=effort)
    assert plan.search.ended_by == "stop"
    assert plan.makespan_s <= good_s


@pytest.mark.slow
def test_planners_read_no_clock():
    """The names of clocks stand in no code of planners: seconds are for those who call them."""
    clocks = {
        "perf_counter",
        "monotonic",
        "process_time",
        "thread_time",
        "time_ns",
        "perf_counter_ns",
    }
    found = []
    for folder in schedsim.algorithms.__path__:
        for file in sorted(Path(folder).rglob("*.py")):
            with file.open("rb") as text:
                tokens = list(tokenize.tokenize(text.readline))
            words = [token.string for token in tokens if token.type == tokenize.NAME]
            imports = any(pair == ("import", "time") for pair in itertools.pairwise(words))
            if imports or clocks.intersection(words):
                found.append(file.name)
    assert found == []
