"""Whisper: its parameters, and an encoder that every decoder layer reads."""

import pytest

import schedsim
from schedsim.workloads import PRESETS, WorkloadOptions, build_workload
from schedsim.workloads.whisper import whisper_model

# Of the released checkpoints.
PUBLISHED = {
    "whisper-tiny": 37_760_640,
    "whisper-base": 72_593_920,
    "whisper-small": 241_734_912,
    "whisper-medium": 763_857_920,
    "whisper-large-v3": 1_543_490_560,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_exact(name):
    """To the last one."""
    assert whisper_model(PRESETS[name]).num_parameters == PUBLISHED[name]


def test_parameters_beside_transformers():
    """As many as in the class that runs it, built without memory."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    import torch

    config = transformers.WhisperConfig(
        d_model=384,
        encoder_layers=4,
        decoder_layers=4,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=1536,
        decoder_ffn_dim=1536,
    )
    with torch.device("meta"):
        model = transformers.WhisperForConditionalGeneration(config)
    assert sum(p.numel() for p in model.parameters()) == PUBLISHED["whisper-tiny"]


@pytest.mark.slow
def test_the_encoder_is_read_to_the_end():
    """Its last norm's output is read by every decoder layer, forward and backward."""
    graph = build_workload(WorkloadOptions(preset="whisper-tiny")).workload
    readers = [op.name for op in graph.ops if any(t.endswith(".heard") for t in op.reads)]
    for i in range(4):
        for part in "kv":
            name = f"decoder{i}.cross.{part}"
            assert {name in one for one in readers} == {True, False}
            assert sum(one.endswith((name, f"{name}'")) for one in readers) == 2
    everything = schedsim.simulate(graph, schedsim.Schedule.store_all(graph))
    assert schedsim.plan(graph, everything.peak_bytes * 9 // 10, effort=0.2).feasible
