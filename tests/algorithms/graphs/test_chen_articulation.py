"""Algorithm 3 on graphs: its candidates, its segments, and what the paper says of chains."""

from __future__ import annotations

import math

import numpy as np
import pytest
from chains import INSTANCES, needs_instances
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.graphs._forward_part import forward_part
from schedsim.algorithms.graphs.chen_articulation import (
    articulation_points,
    chen_articulation,
    segment_runs,
    segments,
)
from tiers import examples
from training_graphs import random_training_graph, unit_training_chain

from schedsim import Graph, Op, Schedule, load, simulate


def num_pieces(num_ops: int, edges: list[list[int]], without: int) -> int:
    """Connected pieces of the ops but one, by joining labels until nothing changes."""
    label = {op: op for op in range(num_ops) if op != without}
    changed = True
    while changed:
        changed = False
        for one, other in edges:
            if without not in (one, other) and label[one] != label[other]:
                label[one] = label[other] = min(label[one], label[other])
                changed = True
    return len(set(label.values()))


@given(seed=st.integers(0, 10**9), num_forward=st.integers(1, 14))
@settings(max_examples=examples(200))
def test_articulation_points_by_removal(seed, num_forward):
    """An op is one where the rest falls into more pieces than the whole had."""
    graph = random_training_graph(np.random.default_rng(seed), num_forward)
    part = forward_part(graph.arrays)
    edges = part.edges.tolist()
    whole = num_pieces(part.num_ops, edges, -1)
    alone = {op for op in range(part.num_ops) if not any(op in edge for edge in edges)}
    for op, found in enumerate(articulation_points(part)):
        rest = num_pieces(part.num_ops, edges, op)
        assert found == (rest > whole - (op in alone))


def test_a_long_chain_does_not_recurse():
    """Depth-first search of 5,000 ops in a line; all but the ends are candidates."""
    part = forward_part(unit_training_chain(5000).arrays)
    assert np.flatnonzero(~articulation_points(part)).tolist() == [0, 4999]


def test_segments_by_hand():
    """Bytes 4 1 1 1 5 1, every op a candidate, b = 4: a segment ends where the sum passes 4."""
    sizes = (4, 1, 1, 1, 5, 1)
    ops = [
        Op(f"f{i}", reads=(f"x{i}",) if i else (), writes={f"x{i + 1}": size})
        for i, size in enumerate(sizes)
    ]
    part = forward_part(Graph("hand", tuple(ops)).arrays)
    assert segments(part, np.ones(6, dtype=bool), 4).tolist() == [0, 0, 1, 1, 1, 2]
    only_fourth = np.arange(6) == 3
    assert segments(part, only_fourth, 4).tolist() == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize("num", [25, 64, 100])
def test_square_root_memory_on_a_chain(num):
    """The least peak of a unit chain is within a small constant of 2 sqrt(n)."""
    graph = unit_training_chain(num)
    least = chen_articulation(graph, 0).min_feasible_bytes
    assert least <= 2 * math.sqrt(num) + 3
    plan = chen_articulation(graph, least)
    assert plan.makespan_s <= graph.store_all_s + num  # one forward more at the most


def test_all_candidates_are_never_fewer_segments():
    """On a chain both sets of candidates reach the same least peak, but for the ends."""
    graph = unit_training_chain(36)
    least = {
        kind: chen_articulation(graph, 0, candidates=kind).min_feasible_bytes
        for kind in ("articulation", "all")
    }
    assert least["all"] <= least["articulation"]


def test_the_search_holds_the_papers_values():
    """Every plan of search "paper" is among those of "all"."""
    graph = random_training_graph(np.random.default_rng(3), 25)
    part = forward_part(graph.arrays)
    few = {runs.tobytes() for _, runs in segment_runs(part, candidates="all", search="paper")}
    many = {runs.tobytes() for _, runs in segment_runs(part, candidates="all", search="all")}
    assert few <= many


def test_a_skip_connection_leaves_no_candidate_inside():
    """x0 is read by the last op: no op between is an articulation point, and nothing is dropped."""
    ops = [Op("f0", time_s=1, writes={"x1": 1})]
    for i in range(1, 5):
        reads = (f"x{i}", "x1") if i == 4 else (f"x{i}",)
        ops.append(Op(f"f{i}", time_s=1, reads=reads, writes={f"x{i + 1}": 1}))
    part = forward_part(Graph("skip", tuple(ops)).arrays)
    assert not articulation_points(part).any()


@needs_instances
def test_resnet_within_a_third_of_its_memory():
    """The peak falls below a third of store-all for less than one forward more."""
    graph = load(INSTANCES / "dag" / "ku_resnet50_train.json")
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    plan = chen_articulation(graph, peak // 3)
    forward_s = graph.arrays.op_time_s[:176].sum()
    assert plan.feasible
    assert plan.makespan_s < graph.store_all_s + forward_s
