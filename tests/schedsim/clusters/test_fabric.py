"""Times of ops and of collectives, against their closed forms."""

from dataclasses import replace

import numpy as np
import pytest

import schedsim
from schedsim import SchedsimError
from schedsim.clusters import get_fabric
from schedsim.workloads.architecture import ExpertSizes


def test_the_slower_of_arithmetic_and_traffic():
    """A roofline; 8 bits are 1.77 times as fast, and 0.92 of the bandwidth is reached."""
    fabric = get_fabric("h100-80gb", 0.5)
    assert fabric.op_s(989e12, 0, 0) == pytest.approx(2.0)
    assert fabric.op_s(0, 989e12, 0) == pytest.approx(2.0 / 1.77)
    assert fabric.op_s(0, 0, 3_350 * 10**9) == pytest.approx(1 / 0.92)


def test_a_ring_inside_a_node():
    """(n - 1) / n of the bytes at the link's rate, and NCCL's latencies of seven steps."""
    fabric = get_fabric("h100-80gb")
    assert fabric.gather_s(8e9, 8, 8) == pytest.approx(7e9 / (450e9 * 0.75) + 8.4e-6 + 7 * 3.4e-6)
    assert fabric.gather_s(8, 8, 8) == pytest.approx(14e-6 + 7 * 1.9e-6)
    twice = 2 * 7e9 / (450e9 * 0.75)
    assert fabric.all_reduce_s(8e9, 8, 8) == pytest.approx(twice + 8.4e-6 + 14 * 3.4e-6)
    assert fabric.gather_s(8e9, 1, 1) == fabric.all_reduce_s(8e9, 1, 1) == 0


def test_a_ring_over_many_nodes_takes_a_step_for_each_rank():
    """512 ranks in 64 nodes; a tree, whose depth grows with the logarithm, sums in fewer."""
    fabric = get_fabric("h100-80gb")
    assert fabric.gather_s(8, 512, 512) == pytest.approx(14e-6 + 448 * 1.9e-6 + 63 * 4e-6)
    large = 1e12 * 511 / 512 / (450e9 * 0.75) + 8.4e-6 + 448 * 3.4e-6 + 63 * 14e-6
    assert replace(fabric, far_bytes_per_s=450e9).gather_s(1e12, 512, 512) == pytest.approx(large)
    tree = 14e-6 + 2 * 7 * 1.25e-6 + 2 * 6 * 8.5e-6
    assert fabric.all_reduce_s(8, 512, 512) == pytest.approx(tree, rel=1e-3)


def test_messages_hold_blocks_for_each_card():
    """24 of 132 processors inside a node; two for each card between nodes, or for 100 Gb/s."""
    fabric, slow = get_fabric("h100-80gb"), get_fabric("a100-80gb", network=6.25)
    assert (fabric.sending(8), fabric.sending(16)) == (24 / 132, 16 / 132)
    assert (slow.sending(8), slow.sending(16)) == (24 / 108, 8 / 108)
    assert fabric.persistent
    assert not slow.persistent


def test_a_ring_over_nodes_uses_every_card():
    """Eight ranks of a node each bring a card, one rank of a node its own alone."""
    fabric = get_fabric("h100-80gb")
    side_by_side, apart = fabric.gather_s(1e10, 16, 16), fabric.gather_s(1e10, 16, 128)
    assert apart > 4 * side_by_side


def test_an_exchange_inside_a_node_is_faster():
    """Tokens that stay in the node go over its own links."""
    fabric = get_fabric("h100-80gb")
    assert fabric.all_to_all_s(1e9, 8, 8) < fabric.all_to_all_s(1e9, 8, 64)


def test_links_inside_and_between_nodes_exchange_side_by_side():
    """Of two nodes, the half that goes to the other one is slower: the rest costs nothing more."""
    fabric = get_fabric("h100-80gb")
    far = 8e9 / 2 / (50e9 * 0.75)
    assert fabric.all_to_all_s(8e9, 16, 16) == pytest.approx(far + 4 * fabric.latency_s)


def test_a_token_is_dispatched_once_to_each_node():
    """Experts are drawn without replacement: who holds one of them is counted by drawing."""
    fabric = get_fabric("h100-80gb")
    for experts, ranks in ((ExpertSizes(128, 8, 768), 16), (ExpertSizes(256, 8, 2048), 32)):
        rng = np.random.default_rng(0)
        drawn = np.stack(
            [rng.permutation(experts.num_routed)[: experts.num_active] for _ in range(4000)]
        )
        local = experts.num_routed // ranks
        nodes = np.mean([len(set(row // local // 8) - {0}) for row in drawn])
        far = 1e9 * nodes / (50e9 * 0.75) + np.log2(ranks) * fabric.latency_s
        assert fabric.dispatch_s(1e9, ranks, ranks, experts) == pytest.approx(far, rel=0.01)
        everywhere = fabric.all_to_all_s(1e9 * experts.num_active, ranks, ranks)
        assert fabric.dispatch_s(1e9, ranks, ranks, experts) < everywhere / 2


def test_inside_a_node_a_token_is_sent_once_to_each_rank():
    """With two experts of eight, each on a rank of its own: two copies, of which 7/8 leave."""
    fabric = get_fabric("h100-80gb")
    seconds = fabric.dispatch_s(1e9, 8, 8, ExpertSizes(8, 2, 64))
    assert seconds == pytest.approx(fabric.all_to_all_s(2e9, 8, 8))
    assert fabric.dispatch_s(1e9, 1, 1, ExpertSizes(8, 2, 64)) == 0.0


def test_attention_is_as_fast_as_its_kernel():
    """The second FlashAttention is twice as fast as the first, and on Hopper half as the third."""
    shares = [get_fabric("a100-80gb", flash=one).attention_share for one in (1, 2)]
    assert shares == [0.5, 1.0]
    seconds = [
        schedsim.cluster("llama3-8b", devices=8, seq=65536, recompute="full", flash=one).step_s
        for one in (1, 2, 3)
    ]
    assert seconds[0] > 1.3 * seconds[1] > 1.3 * seconds[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("h100", None, 4), "--flash 4 is not 1, 2 or 3"),
        (("h100", None, True), "--flash True"),
        (("a100-80gb", None, 3), "--flash 3 does not run on a100-80gb"),
        (("h100", 1.5), "--efficiency 1.5 is not in"),
        (("h100", 0.0), "--efficiency 0.0 is not in"),
    ],
)
def test_refuses_what_no_device_does(arguments, message):
    """In a search too, which has no other check."""
    with pytest.raises(SchedsimError, match=message):
        get_fabric(*arguments)


def test_an_unknown_device_names_those_of_clusters():
    """The table's own names are among them."""
    with pytest.raises(SchedsimError, match="'h300' is unknown") as caught:
        get_fabric("h300")
    assert "h200" in caught.value.hint
    with pytest.raises(SchedsimError) as caught:
        get_fabric("nothing-like-it")
    assert "h100-96gb" in caught.value.hint


def test_a_network_of_ones_own():
    """What crosses nodes takes longer over a slower one; what does not, does not."""
    plain, slow = get_fabric("a100-80gb"), get_fabric("a100-80gb", network=6.25)
    assert slow.far_bytes_per_s == plain.far_bytes_per_s / 4
    assert slow.gather_s(1e9, 8, 8) == plain.gather_s(1e9, 8, 8)
    assert slow.gather_s(1e9, 64, 64) > 3 * plain.gather_s(1e9, 64, 64)
    for wrong in (0, -1.0, float("nan"), float("inf"), True):
        with pytest.raises(SchedsimError, match=r"--network .* is no number of GB/s"):
            get_fabric("a100-80gb", network=wrong)
