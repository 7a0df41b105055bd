"""Seconds of ends, of units and of the optimizer are those of the simulated step."""

import pytest

from schedsim.clusters import Degrees, Training, get_architecture, get_fabric
from schedsim.clusters.end_seconds import EndSeconds, end_seconds, layer_once, optimizer_s
from schedsim.clusters.rank_time import _played_stage
from schedsim.clusters.stages import StageParts, layer_share

FABRIC = get_fabric("h100-80gb")
MODEL = get_architecture("llama3.2-1b")
DEGREES = Degrees(fsdp=4, replicate=2, tensor=2, pipeline=2)


@pytest.mark.parametrize("state", ["fsdp2", "megatron", "bf16"])
@pytest.mark.parametrize("fused", [False, True])
def test_as_a_simulated_stage_has_them(state, fused):
    """Of the last stage, with two layers and the head."""
    training = Training(seq=1024, batch=4, state=state, fused_optimizer=fused)
    stage = StageParts(1, range(14, 16), False, True)
    run = _played_stage(MODEL, DEGREES, training, FABRIC, stage)
    found: dict[str, float] = {}
    for name, seconds in zip(run.run_names, run.run_s.tolist(), strict=True):
        word = name.partition(" ")[0]
        found[word] = found.get(word, 0.0) + seconds
    ends = end_seconds(MODEL, DEGREES, training, FABRIC, stage)
    size = 2 * layer_share(MODEL, DEGREES, 14)
    layer = layer_once(MODEL, DEGREES, training, FABRIC, 14, size)
    for word in ("gather", "unpack", "pack", "reduce"):
        ours = getattr(ends, f"{word}_s") + 2 * getattr(layer, f"{word}_s")
        assert ours == pytest.approx(found.get(word, 0.0), rel=1e-12), word
    optimizer = optimizer_s(MODEL, DEGREES, training, FABRIC, [stage])
    assert optimizer == pytest.approx(found["optimizer"], rel=1e-12)
    if training.state != "megatron":  # its loss makes eight passes forward, and two backward
        assert ends.backward_s > ends.forward_s
    assert min(ends.backward_s, ends.forward_s) > 0


def test_a_stage_between_has_no_ends():
    """Neither embedding nor head."""
    stage = StageParts(1, range(4, 8), False, False)
    assert end_seconds(MODEL, DEGREES, Training(), FABRIC, stage) == EndSeconds()
