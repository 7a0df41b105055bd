"""The program of what is left of a sequence of runs, against all that may be left."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from schedsim.algorithms.graphs._merged_model import MergedModel
from schedsim.algorithms.graphs._merged_runs import merged_runs, runs_of
from scipy.optimize import Bounds, LinearConstraint, milp

from schedsim import Graph, Schedule, simulate
from schedsim.errors import InvalidScheduleError
from tests.helpers.chains import random_graph, random_schedule

# Extra runs of a sequence, of which all subsets are looked at.
MOST_EXTRA = 8


def plain(graph: Graph) -> Graph:
    """Without optional outputs the program is exact; one input stays to the end."""
    ops = [replace(op, optional=(), saving_workspace_bytes=None) for op in graph.ops]
    return replace(graph, ops=tuple(ops), results=(*graph.results, *list(graph.inputs)[:1]))


def drawn(rng, graph):
    """Two schedules and their runs together; ``None`` where these are too many."""
    lines = [random_schedule(rng, graph).bind(graph).astype(np.int64) for _ in range(2)]
    merged = merged_runs(lines, graph.num_ops)
    return (lines, merged) if merged.size - graph.num_ops <= MOST_EXTRA else None


def best_of_all(graph, budget, merged):
    """The least time of any part of `merged` that is legal and fits; by enumeration."""
    first = np.unique(merged, return_index=True)[1]
    extra = [i for i in range(merged.size) if i not in first]
    best = np.inf
    for count in range(len(extra) + 1):
        for left_out in itertools.combinations(extra, count):
            runs = np.delete(merged, left_out)
            try:
                found = simulate(graph, Schedule(graph.op_names, runs))
            except InvalidScheduleError:
                continue
            if found.peak_bytes <= budget:
                best = min(best, found.makespan_s)
    return best


def solved(graph, budget, merged):
    model = MergedModel.of(graph, budget, merged)
    found = milp(
        model.cost,
        integrality=np.ones(model.cost.size),
        bounds=Bounds(model.lb, model.ub),
        constraints=LinearConstraint(model.matrix, -np.inf, model.most),
    )
    return np.inf if found.x is None else graph.store_all_s + found.fun


@pytest.mark.parametrize("seed", range(3))
def test_the_optimum_is_that_of_all_parts(seed):
    rng = np.random.default_rng(seed)
    number = 0
    while number < 12:
        graph = plain(random_graph(rng, int(rng.integers(2, 7))))
        found = drawn(rng, graph)
        if found is None:
            continue
        lines, merged = found
        peaks = [simulate(graph, Schedule(graph.op_names, line)).peak_bytes for line in lines]
        for budget in {min(peaks), min(peaks) - 1, max(peaks) - 1}:
            want = best_of_all(graph, budget, merged)
            assert solved(graph, budget, merged) == pytest.approx(want)
            number += 1


def test_the_points_of_schedules_that_fit_meet_the_rows():
    rng = np.random.default_rng(3)
    for _ in range(40):
        graph = plain(random_graph(rng, int(rng.integers(2, 9))))
        lines = [random_schedule(rng, graph).bind(graph).astype(np.int64) for _ in range(3)]
        merged = merged_runs(lines, graph.num_ops)
        for line in lines:
            simulation = simulate(graph, Schedule(graph.op_names, line))
            for budget in (simulation.peak_bytes, simulation.peak_bytes - 1):
                model = MergedModel.of(graph, budget, merged)
                x = model.point(runs_of(merged, line, graph.num_ops))
                assert model.fits(x) == (budget == simulation.peak_bytes)
                assert model.cost @ x == pytest.approx(simulation.makespan_s - graph.store_all_s)


def test_a_schedule_is_never_said_to_need_less_where_outputs_are_optional():
    rng = np.random.default_rng(4)
    for _ in range(40):
        graph = random_graph(rng, int(rng.integers(2, 9)))
        ops = [replace(op, saving_workspace_bytes=None) for op in graph.ops]
        graph = replace(graph, ops=tuple(ops))
        line = random_schedule(rng, graph).bind(graph).astype(np.int64)
        peak_bytes = simulate(graph, Schedule(graph.op_names, line)).peak_bytes
        model = MergedModel.of(graph, peak_bytes - 1, line)
        assert not model.fits(model.point(np.ones(line.size, dtype=np.bool_)))
