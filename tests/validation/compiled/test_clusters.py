"""Clusters: what is merged, and what may not be."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from fused_steps import captured_step, convolutional, gated
from schedsim.validation.compiled.clusters import MOST_OPS, FusionClusters, StorageReaders
from schedsim.validation.compiled.decompose import decompose


def clustered(make):
    program = decompose(captured_step(*make()).program)
    clusters = FusionClusters(program)
    clusters.merge_vanishing()
    return program, clusters


@pytest.mark.parametrize("make", [gated, convolutional])
def test_an_order_of_clusters_exists_and_is_legal(make):
    """All that a cluster reads is made by those before it: none needs itself through another."""
    program, clusters = clustered(make)
    made, reading = set(), clusters.reading
    for ops in clusters.ordered():
        own = {s for op in ops for s in reading.writes[op]}
        for op in ops:
            for storage in reading.reads[op]:
                assert storage in made | own or program.storages[storage].call < 0
        made |= own
    assert {op for ops in clusters.ordered() for op in ops} == set(reading.ops)


@pytest.mark.parametrize("make", [gated, convolutional])
def test_a_cluster_is_of_one_half_and_of_bounded_size(make):
    program, clusters = clustered(make)
    for ops in clusters.members.values():
        assert len({op < program.seed for op in ops}) == 1
        assert len(ops) <= MOST_OPS


def test_a_merge_that_would_need_itself_is_refused():
    """Two ops with a product of matrices between them."""
    program, clusters = clustered(gated)
    reading = StorageReaders(program)
    for first in reading.ops:
        for storage in reading.writes[first]:
            for between in reading.readers.get(storage, ()):
                after = [r for s in reading.writes[between] for r in reading.readers.get(s, ())]
                if not clusters.can_fuse(between) and after and clusters.can_fuse(first):
                    assert not clusters.merge([first, after[0]])
                    return
    pytest.fail("no product between two ops")
