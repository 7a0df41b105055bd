"""What PyTorch's attention over parts of a sequence moves, in memory and between ranks."""

from dataclasses import replace

import pytest
from cluster_layers import FABRIC, layer

from schedsim.clusters import Degrees
from schedsim.clusters.context_ring import ContextRing

# A rank of Llama 3 8B with 32,768 tokens: 32 heads of 128, keys and values for each of them.
PART = 32768 * 4096 * 2


def ring(ranks=8, *, compiled=True):
    """The attention of such a rank."""
    return ContextRing(ranks, ranks, PART, 2 * PART, PART, compiled)


def op(name, **settings):
    """The op of that name in a layer over four context-parallel ranks."""
    made, _ = layer("llama3-8b", 4096, Degrees(context=4), seq=16384, **settings)
    return next(one for one in (*made.forward, *made.backward) if one.name == name)


def test_eager_ranks_move_what_was_counted():
    """On the dry CUDA device, by PyTorch 2.8 over eight ranks: 45 GB forward, 68 GB backward."""
    assert ring(compiled=False).forward_bytes == pytest.approx(45e9, rel=0.03)
    assert ring(compiled=False).backward_bytes == pytest.approx(68e9, rel=0.03)


@pytest.mark.parametrize(("ranks", "forth", "back"), [(2, 10.57, 45.0), (4, 21.67, 99.0)])
def test_compiled_ranks_move_what_inductor_writes(ranks, forth, back):
    """By the kernels of PyTorch 2.13, in sizes of a part: the first rank, and the last one."""
    assert ring(ranks).forward_bytes == pytest.approx(forth * PART, rel=0.01)
    assert ring(ranks).backward_bytes == back * PART


def test_gradients_go_round_in_fp32():
    """Each rank sends as many messages as there are ranks, twice as large as keys and values."""
    compiled = ring(4).backward_s(FABRIC, 1.0)
    sends = 4 * FABRIC.send_s(4 * PART, 3)
    gather_s = FABRIC.gather_s(8 * PART, 4, 4)
    moved_s = FABRIC.op_s(0, 0, ring(4).backward_bytes)
    assert compiled == pytest.approx(gather_s + sends + moved_s)


def test_eager_messages_run_beside_the_next_part():
    """All but the last; where attention takes no time, all are waited for."""
    one = ring(4, compiled=False)
    send_s = FABRIC.send_s(4 * PART, 3)
    moved_s = FABRIC.op_s(0, 0, one.backward_bytes)
    assert one.backward_s(FABRIC, 1e3) == pytest.approx(send_s + moved_s)
    gather_s = FABRIC.gather_s(8 * PART, 4, 4)
    assert one.backward_s(FABRIC, 0.0) == pytest.approx(gather_s + 4 * send_s + moved_s)
    assert one.forward_s(FABRIC, 1e3) == FABRIC.op_s(0, 0, one.forward_bytes)


def test_messages_between_nodes_are_slower():
    """Where the ranks are eight tensor-parallel ones apart."""
    far = replace(ring(4), span=32)
    assert far.backward_s(FABRIC, 0.0) > 5 * ring(4).backward_s(FABRIC, 0.0)


@pytest.mark.parametrize("compiled", [True, False])
def test_the_ring_is_that_of_fsdp2(compiled):
    """Megatron's ranks gather keys and values, and reduce-scatter their gradients, in 16 bits."""
    words = {"compiled": compiled}
    both = 2 * 4096 * 4096 * 2
    gather_s = FABRIC.gather_s(4 * both, 4, 4)
    assert op("mixed", state="megatron", **words).link_s == gather_s
    assert op("mixed'", state="megatron", **words).link_s == 2 * gather_s
    assert op("mixed'", **words).link_s > 2 * gather_s
    made, _ = layer("llama3-8b", 4096, Degrees(), seq=16384, **words)
    assert all(one.link_s == 0 for one in (*made.forward, *made.backward))
