"""Programs of several cuts: no schedule that keeps, recomputes and copies is faster."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from chains import random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_plans import some_budget, tiny_chain
from offload_steps import random_offloading
from schedsim.algorithms.graphs._cut_table import CutTable
from schedsim.algorithms.offload._linked_graph import link_graph
from schedsim.algorithms.offload._window_model import CopiesWhole, window_program
from slow_offload import least_time_s
from tiers import examples

from schedsim import Graph, Op
from schedsim.plans.effort import Effort
from schedsim.plans.links import Link
from schedsim.plans.offloading import Offloading

WAYS: tuple[CopiesWhole, ...] = ("shares", "windows", "whole")


def window_bounds(graph: Graph, budget: int, offloading: Offloading, ops) -> list[float]:
    """The bound of each way in seconds, with room for the solver's tolerance."""
    table = CutTable(graph, budget, "fixed")
    linked = link_graph(graph, budget, offloading)
    found = []
    for copies in WAYS:
        program = window_program(graph, linked, table, ops, 1.0, copies)
        answer = None if program is None else program.milp.solve(Effort(1000.0))
        found.append(math.inf if answer is None or answer.infeasible else answer.bound - 1e-4)
    return found


@settings(max_examples=examples(12), deadline=None)
@given(seed=st.integers(0, 10**9), is_chain=st.booleans())
def test_no_schedule_is_faster(seed, is_chain):
    """Whatever the cuts; with fewer whole numbers the bound is lower."""
    rng = np.random.default_rng(seed)
    if is_chain:
        graph = tiny_chain(rng, int(rng.integers(1, 4))).graph
    else:
        graph = random_graph(rng, int(rng.integers(2, 6)))
        plain = [replace(op, in_place={}, saving_workspace_bytes=None) for op in graph.ops]
        graph = replace(graph, ops=tuple(plain))
    offloading = random_offloading(rng, whole=True)
    budget = some_budget(rng, graph)
    num = int(rng.integers(1, graph.num_ops + 1))
    ops = sorted(rng.choice(graph.num_ops, num, replace=False).tolist())
    best = least_time_s(graph, budget, offloading, max_states=2000)
    if best is None:
        return
    shares, windows, whole = window_bounds(graph, budget, offloading, ops)
    assert shares <= windows + 1e-3
    assert windows <= whole + 1e-3
    assert whole <= best


def in_the_way(optional: bool) -> tuple[Graph, int]:
    """r must be made again beside d, for which f has no room, and c none for r."""
    ops = (
        Op("f", time_s=1, writes={"r": 6}, optional=("r",) if optional else (), workspace_bytes=1),
        Op("l", "loss", time_s=1, workspace_bytes=8),
        Op("c", "backward", time_s=1, writes={"d": 3}, workspace_bytes=6),
        Op("b", "backward", time_s=1, reads=("d", "r")),
    )
    return Graph("in the way", ops), 9


@pytest.mark.parametrize("optional", [False, True])
def test_what_is_in_the_way_of_a_repeated_run_goes_and_comes_back(optional):
    """3 s out, 1 s of f, 3 s back, beside 4 s of first runs; r itself would take 12 s."""
    graph, budget = in_the_way(optional)
    offloading = Offloading(Link(1), Link(1))
    assert least_time_s(graph, budget, offloading) == 11
    [whole] = window_bounds(graph, budget, offloading, (1, 2, 3))[2:]
    assert whole == pytest.approx(11, abs=1e-3)
    # With a byte more, d stays.
    assert least_time_s(graph, budget + 1, offloading) == 5
    assert window_bounds(graph, budget + 1, offloading, (1, 2, 3))[2] <= 5


def test_an_op_that_does_not_fit_has_no_program():
    """Its own bytes are above the budget."""
    graph, _ = in_the_way(False)
    assert window_bounds(graph, 7, Offloading(Link(1), Link(1)), (1,)) == [math.inf] * 3
