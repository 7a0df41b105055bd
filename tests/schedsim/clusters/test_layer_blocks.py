"""Norms, products and messages of a layer: what they read and write, and how long they take."""

from dataclasses import replace

import pytest
from cluster_layers import FABRIC, layer

from schedsim.clusters import Degrees, Libraries, Training, get_fabric
from schedsim.clusters.layer_blocks import norm_moves
from schedsim.clusters.tape import EXACT_SUMS


@pytest.mark.parametrize(
    ("settings", "moves"),
    [
        ({"compiled": True}, (2, 3)),
        ({}, (2, 5)),
        ({"libraries": Libraries(wide_norm=True)}, (18, 46)),
    ],
)
def test_norms_move_their_input(settings, moves):
    """One kernel, or op by op: 18 and 46 bytes a byte, as counted in PyTorch 2.6."""
    made, training = layer("llama3-8b", 1024, **settings)
    assert norm_moves(training) == moves
    forward = {op.name: op.moved_bytes for op in made.forward}
    backward = {op.name: op.moved_bytes for op in made.backward}
    for name in ("n1", "n2"):
        assert forward[name] == moves[0] * made.sizes["x"]
        assert backward[f"{name}'"] == moves[1] * made.sizes["x"]


def test_norms_op_by_op_take_longer():
    """In a whole step too, and they keep their input in fp32."""
    plain, _ = layer("llama3-8b", 1024)
    wide, _ = layer("llama3-8b", 1024, libraries=Libraries(wide_norm=True))

    def seconds(made):
        return sum(op.compute_s(FABRIC) for op in (*made.forward, *made.backward))

    assert seconds(wide) > 1.05 * seconds(plain)
    assert wide.sizes["n1.wide"] == 2 * wide.sizes["x"]
    assert "n1.wide" not in plain.sizes


@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b"])
def test_backward_products_in_8_bits_add_up_in_fp32(model):
    """They take longer than those of the forward, and have as many flops."""
    fabric = replace(get_fabric("h100-80gb"), memory_share=1e9)  # traffic takes no time
    made, _ = layer(model, 4096, compiled=True, float8=True)
    forward = [op for op in made.forward if op.float8_flops]
    backward = [op for op in made.backward if op.float8_flops]
    assert not any(op.exact_sums for op in forward)
    assert all(op.exact_sums for op in backward)

    def rate(ops):
        return sum(op.float8_flops for op in ops) / sum(op.compute_s(fabric) for op in ops)

    assert rate(forward) == pytest.approx(EXACT_SUMS * rate(backward))


def test_several_rows_are_cut_into_parts():
    """A sequence of one row lies together; of two, its parts are copied."""
    one, _ = layer("llama3-8b", 1024, Degrees(tensor=2), seq=1024, batch=1)
    two, _ = layer("llama3-8b", 1024, Degrees(tensor=2), seq=512, batch=2)
    assert "n1.whole.copy" not in one.sizes
    assert two.sizes["n1.whole.copy"] == two.sizes["n1.whole"]
    assert Training(seq=512, batch=2).micro_batch(Degrees(tensor=2)) == 2
