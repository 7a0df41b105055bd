"""Optima over schedules whose first runs keep the graph's order, by search and by enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
from schedsim.algorithms.exhaustive import MAX_STATES, exhaustive

from schedsim import Schedule, simulate


def fixed_order_optimum(graph, budget: int, max_states: int = MAX_STATES) -> float:
    """Least makespan with the order of first runs fixed, any repeats anywhere; inf for none."""
    plan = exhaustive(graph, budget, order="fixed", max_states=max_states)
    return math.inf if plan.makespan_s is None else plan.makespan_s


def staged_schedules(graph, most_repeats: int | None = None):
    """Every schedule that repeats an op at most once between two first runs, in the graph's order.

    `most_repeats` limits the repeats of one op in the whole schedule.
    """
    num_ops = graph.num_ops
    num_stages = num_ops + bool([t for t in graph.results if t not in graph.inputs])
    choices = []
    for op in range(num_ops):
        stages = [] if graph.ops[op].once else range(op + 1, num_stages)
        most = len(stages) if most_repeats is None else min(len(stages), most_repeats)
        sets = [c for k in range(most + 1) for c in itertools.combinations(stages, k)]
        choices.append(sets)
    for chosen in itertools.product(*choices):
        runs = []
        for stage in range(num_stages):
            runs += [op for op in range(min(stage, num_ops)) if stage in chosen[op]]
            runs += [stage] if stage < num_ops else []
        yield runs


def staged_frontier(graph, most_repeats: int | None = None) -> list[tuple[int, float]]:
    """(peak, makespan) of every staged schedule that no other beats in both."""
    best: dict[int, float] = {}
    for runs in staged_schedules(graph, most_repeats):
        simulation = simulate(graph, Schedule(graph.op_names, np.array(runs)))
        peak = simulation.peak_bytes
        best[peak] = min(best.get(peak, math.inf), simulation.makespan_s)
    found, fastest = [], math.inf
    for peak in sorted(best):
        if best[peak] < fastest:
            fastest = best[peak]
            found.append((peak, fastest))
    return found


def optimum_at(frontier: list[tuple[int, float]], budget: int) -> float:
    """The least makespan of a frontier within `budget`."""
    return min((time_s for peak, time_s in frontier if peak <= budget), default=math.inf)
