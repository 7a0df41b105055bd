"""What makes each family what its name says."""

from __future__ import annotations

import pytest

from schedsim.workloads.synthetic_networks import SYNTHETIC_NETWORKS


def forward_reads(name: str) -> list[set[int]]:
    """What each forward op reads, by numbers of ops, in a graph of about 200 ops."""
    graph = SYNTHETIC_NETWORKS[name](200, 0)
    return [{int(read[1:]) for read in op.reads} for op in graph if op.name.startswith("f")]


def num_readers(reads: list[set[int]], op: int) -> int:
    return sum(op in one for one in reads)


def test_every_decoder_layer_reads_what_was_encoded():
    """Keys and values of each layer: most readers of all."""
    reads = forward_reads("encoder-decoder")
    readers = [num_readers(reads, op) for op in range(len(reads))]
    assert max(readers) >= 2 * 3
    assert readers.count(max(readers)) == 1


def test_a_dense_layer_reads_all_layers_of_its_block():
    reads = forward_reads("dense")
    assert max(len(one) for one in reads) == 13


@pytest.mark.parametrize("name", ["attention-unet", "bidirectional"])
def test_some_outputs_are_read_far_behind(name):
    """Skips of a U-net; what a recurrence in the other direction reads last."""
    reads = forward_reads(name)
    apart = max(op - read for op, one in enumerate(reads) for read in one)
    assert apart > len(reads) / 4


def test_a_butterfly_mixes_every_value_with_every_other():
    """Four exchanges behind, a value depends on all sixteen at the beginning."""
    reads = forward_reads("butterfly")
    known = [{op} for op in range(16)]
    for one in reads[16:80]:
        known.append(set().union(*(known[read] for read in one)))
    assert all(len(one) == 16 for one in known[64:80])


def test_shares_of_experts_are_uneven():
    graph = SYNTHETIC_NETWORKS["shared-experts"](200, 0)
    sizes = [size for op in graph if op.phase == "forward" for size in op.writes.values()]
    assert max(sizes) > 50 * min(sizes)


def test_parallel_parts_are_joined():
    """Ops that read several, and several ops that read one."""
    for name in ("series-parallel", "message-passing"):
        reads = forward_reads(name)
        assert max(len(one) for one in reads) >= 3
        assert max(num_readers(reads, op) for op in range(len(reads))) >= 3
