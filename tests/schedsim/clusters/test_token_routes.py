"""Kernels between router and experts: which a library has, and what an MLP of experts takes."""

import pytest

from schedsim.clusters import Degrees, Libraries, Training, get_architecture, get_fabric
from schedsim.clusters.layer_ops import LayerWriter
from schedsim.clusters.layer_spans import op_s
from schedsim.clusters.token_routes import ROUTES, route_of
from schedsim.errors import SchedsimError


def test_a_library_has_the_kernels_of_today():
    """torchtitan's with FSDP2, Megatron's fused ones with its state; others by their name."""
    assert route_of("", "fsdp2") is ROUTES["sorted"]
    assert route_of("", "megatron") is ROUTES["fused"]
    assert route_of("padded", "megatron") is ROUTES["padded"]


def test_an_unknown_name_is_refused():
    """In a line that names those that are known."""
    training = Training(libraries=Libraries(routes="other"))
    with pytest.raises(SchedsimError, match="routes 'other'") as caught:
        training.check(get_architecture("mixtral-8x7b"), Degrees())
    assert "padded" in caught.value.hint


@pytest.mark.parametrize(("routes", "measured_ms"), [("padded", 19.71), ("product", 19.03)])
def test_an_mlp_of_experts_takes_what_was_measured(routes, measured_ms):
    """Forward and backward of DeepSeek 16B's on one H100, 4 x 4,096 tokens (torchtitan, 1974)."""
    fabric = get_fabric("h100-80gb")
    training = Training(seq=4096, batch=4, libraries=Libraries(routes=routes))
    model = get_architecture("deepseek-v2-lite")
    layer = LayerWriter(model, Degrees(), training, 4 * 4096, fabric).layer(True)
    names = [op.name for op in layer.forward]
    forward = layer.forward[names.index("scores") : names.index("out")]
    backward = layer.backward[: [op.name for op in layer.backward].index("n2'")]
    seconds = sum(op_s(op, fabric) for op in (*forward, *backward))
    assert 1e3 * seconds == pytest.approx(measured_ms, rel=0.1)
