"""Messages between tensor-parallel ranks beside products."""

import pytest
from cluster_layers import FABRIC, layer

from schedsim.clusters import Degrees
from schedsim.clusters.overlapped_tensor import with_overlapped_tensor
from schedsim.clusters.tape import RankOp


def op(name, reads, made, seconds, kind="product"):
    """A product of so many seconds, or a message."""
    if kind in ("gather", "scatter"):
        words = {"stream": "tensor", "link_s": seconds}
    else:
        words = {"flops": seconds * FABRIC.device.flops_per_s["bf16"] * FABRIC.efficiency}
    return RankOp(name, reads, {made: 1}, kind=kind, **words)


def test_all_parts_but_one_are_beside_products():
    """Four ranks: three quarters of the products that read what is gathered, or make a sum."""
    ops = [
        op("whole", ("x",), "whole", 5.0, "gather"),
        op("gate", ("whole",), "gate", 2.0),
        op("up", ("whole",), "up", 2.0),
        op("down", ("gate", "up"), "down", 8.0),
        op("part", ("down",), "part", 5.0, "scatter"),
    ]
    found = {one.name: one.link_s for one in with_overlapped_tensor(ops, FABRIC, 4, backward=False)}
    assert found["whole"] == pytest.approx(5.0 - 3.0)
    assert found["part"] == 0.0
    back = {one.name: one.link_s for one in with_overlapped_tensor(ops, FABRIC, 4, backward=True)}
    assert back["whole"] == pytest.approx(5.0 - 1.5)
    assert back["part"] == pytest.approx(5.0 - 3.0)


def test_a_sum_of_gradients_passes_on_who_made_them():
    """What is scattered backward is a sum of what several products made."""
    ops = [
        op("gate'", ("d.gate",), "d.0", 4.0),
        op("up'", ("d.up",), "d.1", 4.0),
        RankOp("add d", ("d.0", "d.1"), {"d": 1}),
        op("whole'", ("d",), "d.x", 9.0, "scatter"),
    ]
    found = with_overlapped_tensor(ops, FABRIC, 2, backward=True)
    assert found[-1].link_s == pytest.approx(9.0 - 2.0)
    assert found[:-1] == tuple(ops[:-1])


def test_a_layer_waits_for_less():
    """Products, attention and sizes are as they were."""
    words = {"seq": 4096, "state": "megatron", "regather": True, "compiled": True}
    one, other = (
        layer("llama3-70b", 4096, Degrees(tensor=8), overlap_tensor=on, **words)[0]
        for on in (False, True)
    )
    waits = [
        sum(op.link_s for op in (*made.forward, *made.backward) if op.stream == "tensor")
        for made in (one, other)
    ]
    assert waits[1] < 0.5 * waits[0]
    computing = [
        [op for op in (*made.forward, *made.backward) if op.stream == "compute"]
        for made in (one, other)
    ]
    assert computing[0] == computing[1]
    assert one.sizes == other.sizes
