"""Sequences made of the answers of programs of several cuts."""

from __future__ import annotations

import numpy as np
from chains import random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_steps import linked_of, random_offloading
from schedsim.algorithms.graphs._cut_table import CutTable
from schedsim.algorithms.offload._answer_tokens import answer_tokens
from schedsim.algorithms.offload._linked_graph import token_names
from schedsim.algorithms.offload._timeline import evaluate, make_trace
from schedsim.algorithms.offload._window_model import window_program
from tiers import examples

from schedsim import Graph, Op, Schedule, simulate
from schedsim.kernels.compiled import in_python
from schedsim.plans.effort import Effort
from schedsim.plans.links import Link
from schedsim.plans.offloading import Offloading


def sequence(graph: Graph, budget: int, offloading: Offloading, cuts) -> np.ndarray | None:
    """The tokens of the answer of the program of `cuts`; ``None`` where there is none."""
    linked = linked_of(graph, budget, offloading)
    program = window_program(graph, linked, CutTable(graph, budget, "fixed"), cuts, 1.0)
    answer = None if program is None else program.milp.solve(Effort(100.0))
    return None if answer is None or answer.x is None else answer_tokens(program, answer.x)


def test_a_tensor_goes_behind_its_op_and_comes_back_before_its_reader():
    """In 4 s of the op between, which has no room for it."""
    ops = (
        Op("x", time_s=1, writes={"x": 2}, once=True),
        Op("between", time_s=2, workspace_bytes=9),
        Op("loss", "loss", time_s=1, reads=("x",)),
    )
    graph = Graph("away", ops)
    tokens = sequence(graph, 10, Offloading(Link(1), Link(1)), (1,))
    assert token_names(graph, tokens) == ["x", "d2h:x", "between", "h2d:x", "loss"]


def test_an_op_runs_again_before_its_reader():
    """It takes less time than the link."""
    ops = (
        Op("y", time_s=1, writes={"y": 1}),
        Op("x", time_s=1, reads=("y",), writes={"x": 2}),
        Op("between", time_s=1, workspace_bytes=9),
        Op("next", time_s=1, reads=("y",)),
        Op("loss", "loss", time_s=1, reads=("x",)),
    )
    graph = Graph("again", ops)
    tokens = sequence(graph, 10, Offloading(Link(0.01), Link(0.01)), (2,))
    assert token_names(graph, tokens) == ["y", "x", "between", "next", "x", "loss"]


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(2, 6))
def test_sequences_are_legal_and_hold_every_op(seed, num):
    """First runs in order, and copies of what is there; memory may be over the budget."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, num)
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    budget = int(rng.uniform(0.6, 1.0) * peak)
    cuts = sorted(rng.choice(num, int(rng.integers(1, num + 1)), replace=False).tolist())
    offloading = random_offloading(rng, whole=True)
    tokens = sequence(graph, budget, offloading, cuts)
    if tokens is None:
        return
    linked = linked_of(graph, budget, offloading)
    makespan_s, _, _ = in_python(evaluate)(
        linked, tokens, tokens.size, make_trace(linked, tokens.size + 1)
    )
    assert makespan_s >= graph.store_all_s
    ops = tokens[tokens < num]
    _, first = np.unique(ops, return_index=True)
    assert np.all(np.diff(first) > 0)
    assert first.size == num
