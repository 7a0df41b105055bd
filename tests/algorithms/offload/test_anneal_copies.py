"""Annealing of runs and copies: its proposals one by one, and the best that it keeps."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from chains import random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_plans import tiny_chain
from offload_steps import linked_of, random_tokens, schedule_of, tokens_of
from schedsim.algorithms.offload import _anneal_copies as annealing
from schedsim.algorithms.offload._anneal_copies import LENGTH, MAKESPAN, MOVES, WORK, Walk
from schedsim.algorithms.offload._linked_graph import token_names
from schedsim.algorithms.offload._sequence_edits import SPARE, make_scratch
from schedsim.algorithms.offload._timeline import evaluate, make_trace
from tiers import examples

from schedsim import Graph, Schedule, simulate
from schedsim.kernels.compiled import in_python
from schedsim.plans.links import Link, with_copies
from schedsim.plans.offloading import Offloading

LINK = Offloading(Link(2), Link(2))


def stepped(seed: int, num: int):
    """A graph, a legal sequence of it in ``scratch.current``, and its timeline."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, num)
    tokens = tokens_of(graph, random_tokens(rng, graph))
    linked = linked_of(graph, 10**6, LINK)
    trace = make_trace(linked, tokens.size + 3 * SPARE)
    scratch = make_scratch(linked, trace)
    scratch.current[: tokens.size] = tokens
    in_python(evaluate)(linked, scratch.current, tokens.size, trace)
    np.random.seed(seed % 2**32)
    return graph, linked, trace, scratch, tokens


@given(st.integers(1, 9), st.data())
def test_leaving_out_and_moving(size, data):
    """As lists do it."""
    tokens = np.arange(10, 10 + size)
    at, to = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, size - 1))
    count = data.draw(st.integers(1, size - at))
    into = np.zeros(20, np.int64)
    made = in_python(annealing._without)(tokens, size, at, count, into)
    assert into[:made].tolist() == [*tokens[:at], *tokens[at + count :]]
    line = tokens.tolist()
    line.insert(to, line.pop(at))
    made = in_python(annealing._moved)(tokens, size, at, to, into)
    assert into[:made].tolist() == line


@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(1, 8))
def test_places_are_of_the_kind_that_was_asked_for(seed, num):
    """Tokens of a range; repeats of an op that ran before; gaps with something between."""
    graph, linked, trace, scratch, tokens = stepped(seed, num)
    size, line = tokens.size, tokens.tolist()
    low, high = graph.num_ops, graph.num_ops + graph.arrays.tensor_bytes.size
    at = in_python(annealing._pick)(scratch.current, size, low, high)
    there = [k for k, token in enumerate(line) if low <= token < high]
    assert at in there if there else at == -1
    repeats = [k for k, token in enumerate(line) if token < low and token in line[:k]]
    for _ in range(3):
        found = in_python(annealing._repeat_at)(linked, scratch.current, size, scratch)
        assert found in repeats if repeats else found == -1
    for _ in range(4):
        i, use, read = in_python(annealing._random_gap)(linked, trace, scratch.current, size)
        if i >= 0:
            assert use < read - 1
            reads = trace.used[trace.reads_at[read] : trace.reads_at[read + 1]]
            assert i in reads
            assert linked.size[trace.tensor[i]] > 0


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(1, 8), depth=st.integers(1, 4))
def test_runs_are_added_where_a_tensor_is_read(seed, num, depth):
    """The producer just before the reader, and before it those of some of its inputs."""
    graph, linked, trace, scratch, tokens = stepped(seed, num)
    size, line, names = tokens.size, tokens.tolist(), list(graph.arrays.tensor_names)
    i, _, read = in_python(annealing._random_gap)(linked, trace, scratch.current, size)
    if i < 0:
        return
    t = int(trace.tensor[i])
    into = scratch.proposed
    made = in_python(annealing._add_runs)(
        linked, trace, scratch.current, size, t, read, depth, into
    )
    maker = graph.producer(names[t])
    if maker is None or graph.ops[maker].once:
        assert made == -1
        return
    added = into[read : read + made - size].tolist()
    assert into[:made].tolist() == [*line[:read], *added, *line[read:]]
    assert 1 <= len(added) <= depth
    assert added[-1] == maker
    for first, then in itertools.pairwise(added):
        assert any(graph.producer(name) == first for name in graph.ops[then].reads)
    assert in_python(evaluate)(linked, into, made, trace)[0] >= 0


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(2, 8))
def test_a_copy_back_becomes_a_run_and_a_run_a_copy(seed, num):
    """One copy back less and one run more, or one stretch of repeats less; legal or refused."""
    graph, linked, trace, scratch, tokens = stepped(seed, num)
    size, num_ops = tokens.size, graph.num_ops
    back = num_ops + graph.arrays.tensor_bytes.size
    before = tokens.tolist()
    made = in_python(annealing._run_instead)(linked, trace, scratch.current, size, scratch.proposed)
    if made >= 0:
        after = scratch.proposed[:made].tolist()
        assert sum(x >= back for x in after) == sum(x >= back for x in before) - 1
        assert sum(x < num_ops for x in after) == sum(x < num_ops for x in before) + 1
    trial = make_trace(linked, scratch.current.size)
    for copies in (False, True):
        made = in_python(annealing._keep_instead)(
            linked, trial, scratch.current, size, scratch, copies
        )
        if made >= 0:
            after = scratch.proposed[:made].tolist()
            runs = [x for x in after if x < num_ops]
            assert len(runs) < sum(x < num_ops for x in before)
            assert set(runs) == set(range(num_ops))
            assert copies or len(after) < len(before)


def walked(graph: Graph, tokens: np.ndarray, budget: int, moves: int, **given):
    """Annealing from `tokens`: the walk, and the length of what stands there in the end."""
    linked = linked_of(graph, budget, LINK)
    trace, trial = (make_trace(linked, tokens.size + 6 * SPARE) for _ in range(2))
    scratch = make_scratch(linked, trace)
    scratch.current[: tokens.size] = tokens
    best = np.array([np.inf, 0.0, 0.0, 0.0])
    walk = Walk(linked, trace, trial, scratch, np.zeros_like(scratch.current), best, price=10.0)
    np.random.seed(given.get("seed", 0))
    work = given.get("most_work", 1e18)
    num = in_python(annealing.anneal)(walk, tokens.size, given.get("heat_s", 0.1), moves, work)
    return walk, num


@settings(max_examples=examples(5), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(2, 3))
def test_the_best_is_what_the_engine_says(seed, num):
    """Within the budget, and in that time."""
    rng = np.random.default_rng(seed)
    graph = tiny_chain(rng, num).graph
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    budget = peak - 1
    walk, size = walked(graph, np.arange(graph.num_ops), budget, 30)
    assert in_python(evaluate)(walk.linked, walk.scratch.current, size, walk.trace)[0] >= 0
    if not walk.best[LENGTH]:
        return
    names = token_names(graph, walk.best_tokens[: int(walk.best[LENGTH])])
    copied = [name[4:] for name in names if name.startswith("d2h:")]
    whole = with_copies(graph, d2h=LINK.d2h, h2d=LINK.h2d, tensors=copied) if copied else graph
    told = simulate(whole, schedule_of(names), capacities=LINK.capacities(budget))
    assert told.makespan_s == pytest.approx(walk.best[MAKESPAN])
    assert told.peak_bytes <= budget


def test_what_is_needless_goes_when_it_is_cold():
    """Repeats and copies thrown in; with all the memory there is, store-all is left."""
    rng = np.random.default_rng(3)
    graph = tiny_chain(rng, 3).graph
    tokens = tokens_of(graph, random_tokens(rng, graph))
    assert tokens.size > graph.num_ops
    walk, _ = walked(graph, tokens, 10**6, 120, heat_s=1e-9)
    assert walk.best[MAKESPAN] == graph.store_all_s


def test_work_and_moves_are_counted_and_end_it():
    """The same seed makes the same moves; work ends it with the move that reaches it."""
    graph = tiny_chain(np.random.default_rng(5), 4).graph
    line = np.arange(graph.num_ops)
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    one, _ = walked(graph, line, peak - 2, 30, seed=7)
    two, _ = walked(graph, line, peak - 2, 30, seed=7)
    assert one.best.tolist() == two.best.tolist()
    assert one.best[MOVES] == 30
    half, _ = walked(graph, line, peak - 2, 10**6, seed=7, most_work=one.best[WORK] / 2)
    assert 0 < half.best[MOVES] < 30
    assert half.best[WORK] >= one.best[WORK] / 2
