"""Edits of a sequence of runs and copies: what each one leaves, by a slower way."""

from __future__ import annotations

import numpy as np
from chains import random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_steps import linked_of, random_offloading, random_tokens, tokens_of
from schedsim.algorithms.offload import _sequence_edits as edits
from schedsim.algorithms.offload._timeline import evaluate, make_trace
from tiers import examples

from schedsim import Chain, Graph
from schedsim.kernels.compiled import in_python
from schedsim.plans.links import Link
from schedsim.plans.offloading import Offloading

SPARE = edits.SPARE


def room_for(linked, num: int):
    trace = make_trace(linked, num + 3 * SPARE)
    return trace, edits.make_scratch(linked, trace)


def random_step(seed: int, num: int, share: float = 1.0):
    """A graph on a link, a legal sequence, and room to work in; a budget of that share."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, num)
    tokens = tokens_of(graph, random_tokens(rng, graph))
    linked = linked_of(graph, 10**6, random_offloading(rng))
    trace, scratch = room_for(linked, tokens.size)
    buffer = np.zeros(scratch.current.size, np.int64)
    buffer[: tokens.size] = tokens
    in_python(evaluate)(linked, buffer, tokens.size, trace)
    most = int(trace.memory[: tokens.size].max(initial=0))
    budget = graph.static_bytes + int(share * most)
    linked = linked_of(graph, budget, Offloading(Link(2), Link(2)))
    in_python(evaluate)(linked, buffer, tokens.size, trace)
    return rng, graph, linked, buffer, tokens.size, trace, scratch


def slowly_tidied(graph: Graph, tokens: list[int]) -> list[int]:
    """Second copies out go; then repeats and copies that nobody reads, until none is left."""
    num_ops, num = graph.num_ops, graph.arrays.tensor_bytes.size
    names = list(graph.arrays.tensor_names)
    out: set[int] = set()
    line = []
    for token in tokens:
        if num_ops <= token < num_ops + num:
            if token in out:
                continue
            out.add(token)
        line.append(token)
    while True:
        seen: set[int] = set()
        read: set[int] = set()  # places that somebody reads
        device: dict[int, int] = dict.fromkeys(range(num), -1)
        host: dict[int, int] = {}
        keep = []
        for place, token in enumerate(line):
            first = False
            if token < num_ops:
                first = token not in seen
                seen.add(token)
                op = graph.ops[token]
                read |= {device[names.index(t)] for t in op.reads}
                device |= {names.index(t): place for t in op.writes}
            elif token < num_ops + num:
                read.add(device[token - num_ops])
                host[token - num_ops] = place
            else:
                t = token - num_ops - num
                read.add(host[t])
                device[t] = place
            keep.append(first)
        read |= {device[names.index(t)] for t in graph.results}
        shorter = [token for i, token in enumerate(line) if keep[i] or i in read]
        if shorter == line:
            return line
        line = shorter


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(1, 8))
def test_tidying_drops_what_nobody_needs(seed, num):
    """As dropping one by one does, until nothing is left to drop; once more changes nothing."""
    _, graph, linked, buffer, size, trace, scratch = random_step(seed, num)
    want = slowly_tidied(graph, buffer[:size].tolist())
    made = in_python(edits.tidy)(linked, buffer, size, scratch)
    assert buffer[:made].tolist() == want
    assert in_python(evaluate)(linked, buffer, made, trace)[0] >= 0
    assert in_python(edits.tidy)(linked, buffer, made, scratch) == made
    assert buffer[:made].tolist() == want


@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(1, 8))
def test_the_use_before_a_place(seed, num):
    """The last run that reads the instance, or the one that makes it; -1 for a graph input."""
    _, _, _, _, size, trace, _ = random_step(seed, num)
    for at in range(1, size + 1):
        for instance in range(int(trace.made_by[min(at, size)])):
            users = [int(trace.first[instance])]
            for k in range(users[0] + 1, at):
                reads = trace.used[trace.reads_at[k] : trace.reads_at[k + 1]]
                users += [k] * (instance in reads)
            if users[0] < at:
                assert in_python(edits.gap_before)(trace, instance, at) == max(users)


def chain_of_four() -> Graph:
    """Two seconds a forward and a backward; tensors of four bytes."""
    fours = [4] * 4
    return Chain.from_arrays(
        "four",
        4,
        forward_s=[2] * 4,
        backward_s=[2] * 4,
        output_bytes=fours,
        saved_bytes=fours,
    ).graph


def store_all_step(budget: int, bandwidth: float):
    graph = chain_of_four()
    linked = linked_of(graph, budget, Offloading(Link(bandwidth), Link(bandwidth)))
    trace, scratch = room_for(linked, graph.num_ops)
    buffer = np.zeros(scratch.current.size, np.int64)
    buffer[: graph.num_ops] = np.arange(graph.num_ops)
    in_python(evaluate)(linked, buffer, graph.num_ops, trace)
    return graph, linked, buffer, graph.num_ops, trace, scratch


def test_a_copy_goes_out_behind_a_use_and_back_as_late_as_the_link_allows():
    """a1 is read by F2 and by B2 (index 6); two seconds of copying begin beside B4's end.

    Nine runs: F1..F4 at 0..6, the loss at 8, B4 at 8, B3 at 10, B2 at 12.
    """
    graph, linked, buffer, size, trace, scratch = store_all_step(10**6, 2.0)
    t = list(graph.arrays.tensor_names).index("a1")
    reader = max(i for i, op in enumerate(graph.ops) if "a1" in op.reads)
    use = min(i for i, op in enumerate(graph.ops) if "a1" in op.reads)
    back = in_python(edits.place_back)(linked, trace, buffer, use, reader, t)
    begins = trace.start_s[reader] - 2.0
    # The run before it begins no later than the copy must; the run at that place begins later.
    assert trace.start_s[back - 1] <= begins < trace.start_s[back]
    made = in_python(edits.add_copy)(linked, buffer, size, t, use, back, scratch.other)
    num_ops, num = graph.num_ops, graph.arrays.tensor_bytes.size
    line = scratch.other[:made].tolist()
    assert line.index(num_ops + t) == use + 1
    assert line[back + 1] == num_ops + num + t
    assert [token for token in line if token < num_ops] == list(range(num_ops))
    makespan_s, _, _ = in_python(evaluate)(linked, scratch.other, made, trace)
    assert makespan_s == graph.store_all_s  # hidden behind the runs
    # Copied out once: the copy on the host stays good.
    again = in_python(edits.add_copy)(
        linked, scratch.other, made, t, use + 2, made, scratch.proposed
    )
    assert again == made + 1
    assert scratch.proposed[:again].tolist().count(num_ops + t) == 1


def test_a_busy_link_is_waited_for():
    """With another copy back before the same reader, the second begins before the first."""
    graph, linked, buffer, size, trace, scratch = store_all_step(10**6, 2.0)
    names = list(graph.arrays.tensor_names)
    place = in_python(edits.place_back)
    readers = {t: max(i for i, op in enumerate(graph.ops) if t in op.reads) for t in names}
    one, two = names.index("a1"), names.index("a2")
    alone = place(linked, trace, buffer, 2, readers["a1"], one)
    back = place(linked, trace, buffer, 3, readers["a2"], two)
    made = in_python(edits.add_copy)(linked, buffer, size, two, 3, back, scratch.other)
    in_python(evaluate)(linked, scratch.other, made, trace)
    slow = linked_of(graph, 10**6, Offloading(Link(2), Link(0.5)))
    later = place(slow, trace, scratch.other, 2, readers["a1"] + 2, one)
    before = [token for token in scratch.other[:later].tolist() if token < graph.num_ops]
    assert len(before) < alone


def test_no_room_is_no_edit():
    """A buffer that is full stays as it is."""
    _, linked, buffer, size, _, _ = store_all_step(10**6, 2.0)
    assert in_python(edits.add_copy)(linked, buffer, size, 1, 2, 5, np.zeros(size + 1, int)) == -1


def test_what_is_moved_away_covers_the_excess_or_lies_unused_longest():
    """Big first, where the bytes count; the one with the longest window, where they do not."""
    chain = Chain.from_arrays(
        "sizes",
        1,
        forward_s=[1] * 4,
        backward_s=[1] * 4,
        output_bytes=[2, 8, 2, 2],
        saved_bytes=[2, 8, 2, 2],
    )
    graph = chain.graph
    linked = linked_of(graph, 10**6, Offloading(Link(100), Link(100)))
    trace, scratch = room_for(linked, graph.num_ops)
    tokens = np.arange(graph.num_ops)
    in_python(evaluate)(linked, tokens, tokens.size, trace)
    choose = in_python(edits.choose_gap)
    names = graph.arrays.tensor_names
    loss = 4
    for taste, want in ((0.0, "a0"), (9.0, "a2")):
        i = choose(linked, trace, tokens.size, loss, 8, taste, scratch)
        assert names[trace.tensor[i]] == want
        assert scratch.before[i] < loss < scratch.after[i]


@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(2, 8), share=st.floats(0.5, 1.0))
def test_repair_ends_legal_and_says_what_is_still_over(seed, num, share):
    """As evaluated anew; within the budget nothing is moved; ops keep their order."""
    _, graph, linked, buffer, size, trace, scratch = random_step(seed, num, share)
    before = buffer[:size].tolist()
    excess_before = in_python(evaluate)(linked, buffer, size, trace)[1]
    made, makespan_s, excess = in_python(edits.repair)(linked, trace, buffer, size, scratch, 0.5, 6)
    assert (makespan_s, excess) == in_python(evaluate)(linked, buffer, made, trace)[:2]
    assert makespan_s >= 0
    after = buffer[:made].tolist()
    assert [x for x in after if x < graph.num_ops] == [x for x in before if x < graph.num_ops]
    if excess_before <= 0:
        assert after == before


def test_repair_brings_a_chain_within_its_budget():
    """By three copies out and back, at no time, as the link is fast."""
    graph, linked, buffer, size, trace, scratch = store_all_step(10**6, 100.0)
    peak = int(trace.memory[:size].max())
    linked = linked_of(graph, peak - 8, Offloading(Link(100), Link(100)))
    made, makespan_s, excess = in_python(edits.repair)(linked, trace, buffer, size, scratch, 1.0, 8)
    assert excess == 0
    assert made > size
    assert makespan_s < graph.store_all_s * 1.2
