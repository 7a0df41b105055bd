"""One workload for all ranks: the largest of every number."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from chains import random_chain
from made_ranks import on_ranks
from schedsim.validation.ranks.envelope import envelope
from schedsim.validation.ranks.ranks import ALONE
from training_graphs import random_training_graph

from schedsim import Chain, Schedule, Stage, simulate
from schedsim.dataflow.recorded_step import RecordedStep
from schedsim.errors import UnsupportedError


def changed(graph, rng):
    """The same ops with other times and sizes."""
    ops = []
    for op in graph.ops:
        writes = {t: size + int(rng.integers(0, 9)) for t, size in op.writes.items()}
        ops.append(replace(op, time_s=op.time_s * float(rng.uniform(0.5, 2)), writes=writes))
    return replace(graph, ops=tuple(ops), static_bytes=int(rng.integers(0, 50)))


@pytest.mark.parametrize("seed", range(4))
def test_what_fits_the_envelope_fits_every_rank(seed):
    """And no rank's step takes longer; each number is some rank's."""
    rng = np.random.default_rng(seed)
    graph = random_training_graph(rng, 5)
    workloads = [changed(graph, rng) for _ in range(3)]
    found = on_ranks(3, lambda ranks, rank: envelope(workloads[rank], ranks))
    assert found[0] == found[1] == found[2]
    schedule = Schedule.store_all(graph)
    whole = simulate(found[0], schedule)
    for workload in workloads:
        told = simulate(workload, schedule)
        assert told.peak_bytes <= whole.peak_bytes
        assert told.makespan_s <= whole.makespan_s
    for i, op in enumerate(found[0].ops):
        assert op.time_s == max(one.ops[i].time_s for one in workloads)
        for tensor, size in op.writes.items():
            assert size == max(one.size_of(tensor) for one in workloads)
    assert found[0].static_bytes == max(one.static_bytes for one in workloads)


def test_a_whole_number_of_seconds_is_a_time_all_the_same():
    """A time that one rank writes 2 and another 2.5: fields decide, not how a number looks."""
    chain = Chain("two", 4, (Stage("a", 1, 2, 4, 10), Stage("b", 1, 2, 4, 10)))
    slower = replace(
        chain, stages=tuple(replace(s, forward_s=s.forward_s + 0.5) for s in chain.stages)
    )
    found = on_ranks(2, lambda ranks, rank: envelope((chain, slower)[rank], ranks))
    assert found[0] == found[1] == slower


def test_other_ops_are_refused_on_all_ranks():
    """With how many each has."""
    chains = [random_chain(np.random.default_rng(0), num) for num in (3, 4)]
    found = on_ranks(2, lambda ranks, rank: envelope(chains[rank], ranks))
    assert all(isinstance(one, UnsupportedError) for one in found)
    assert "rank 0: 7 ops, rank 1: 9 ops" in found[0].message
    renamed = [replace(chains[0], name=name) for name in ("one", "other")]
    found = on_ranks(2, lambda ranks, rank: envelope(renamed[rank], ranks))
    assert all(isinstance(one, UnsupportedError) for one in found)


def test_one_process_keeps_its_own():
    """Nobody is asked."""
    chain = random_chain(np.random.default_rng(0), 3)
    assert envelope(chain, ALONE) is chain


def test_what_one_rank_did_not_see_is_a_number_of_zero():
    """A clock that stood still, an allocator that was not asked: no other op for that."""
    graph = random_training_graph(np.random.default_rng(1), 4)
    first = graph.ops[0]
    still = replace(graph, ops=(replace(first, time_s=0.0, workspace_bytes=0), *graph.ops[1:]))
    busy = replace(graph, ops=(replace(first, time_s=2.0, workspace_bytes=7), *graph.ops[1:]))
    found = on_ranks(2, lambda ranks, rank: envelope((still, busy)[rank], ranks))
    assert found[0] == found[1] == busy
    chain = random_chain(np.random.default_rng(0), 3)
    chains = [replace(chain, loss_s=time_s, loss_workspace_bytes=size) for time_s, size in
              ((0.0, 5), (1.0, 0))]  # fmt: skip
    found = on_ranks(2, lambda ranks, rank: envelope(chains[rank], ranks))
    assert found[0] == found[1] == replace(chain, loss_s=1.0, loss_workspace_bytes=5)


def test_recorded_requests_are_kept_where_they_are_those_of_all():
    """Numbers of blocks have no largest: where they differ, no rank has any."""
    chain = random_chain(np.random.default_rng(0), 3)
    one = RecordedStep(((4,),), (4,), ("a0",), {"F0": (0, ~0)})
    other = RecordedStep(((4,),), (4,), ("a0",), {"F0": ()})
    for given, want in (((one, one), one), ((one, other), None), ((one, None), None)):
        workloads = [replace(chain, recorded=recorded) for recorded in given]
        found = on_ranks(2, lambda ranks, rank: envelope(workloads[rank], ranks))  # noqa: B023
        assert [each.recorded for each in found] == [want, want]
