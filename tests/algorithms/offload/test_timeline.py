"""The search's evaluation of a sequence gives what the engine gives."""

from __future__ import annotations

import numpy as np
from chains import random_chain, random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_steps import linked_of, random_offloading, random_tokens, schedule_of, tokens_of
from schedsim.algorithms.offload._linked_graph import token_names
from schedsim.algorithms.offload._timeline import evaluate, make_trace
from tiers import examples

from schedsim import simulate
from schedsim.errors import DeadlockError
from schedsim.plans.links import with_copies


@given(seed=st.integers(0, 10**12), num=st.integers(1, 12), is_chain=st.booleans())
@settings(max_examples=examples(400), deadline=None)
def test_times_and_memory_are_those_of_the_engine(seed, num, is_chain):
    """Starts, ends, makespan and what fits: the same, with capacities of all tightnesses."""
    rng = np.random.default_rng(seed)
    graph = random_chain(rng, num).graph if is_chain else random_graph(rng, num)
    names = random_tokens(rng, graph)
    offloading = random_offloading(rng)
    tensor = next((name for name in graph.arrays.tensor_names if _size(graph, name)), None)
    if tensor is None:
        return
    copied = [tensor, *(name[4:] for name in names if name.startswith(("d2h:", "h2d:")))]
    whole = with_copies(graph, d2h=offloading.d2h, h2d=offloading.h2d, tensors=copied)
    schedule = schedule_of(names)
    tokens = tokens_of(graph, names)
    assert token_names(graph, tokens) == names
    free = simulate(whole, schedule)
    for share in (0.5, 0.8, 0.95, 1.0, 2.0):
        budget = int(share * free.peak_bytes)
        step = linked_of(graph, budget, offloading)
        trace = make_trace(step, tokens.size)
        makespan_s, excess, _ = evaluate(step, tokens, tokens.size, trace)
        assert makespan_s >= 0
        try:
            told = simulate(whole, schedule, capacities=offloading.capacities(budget))
        except DeadlockError:
            assert excess > 0
            continue
        assert excess == 0
        assert makespan_s == told.makespan_s
        assert np.array_equal(trace.start_s[: tokens.size], told.start_s)
        assert np.array_equal(trace.end_s[: tokens.size], told.end_s)
        assert trace.memory[: tokens.size].max() + graph.static_bytes == told.peak_bytes


def _size(graph, name: str) -> int:
    return int(graph.arrays.tensor_bytes[graph.arrays.tensor_names.index(name)])
