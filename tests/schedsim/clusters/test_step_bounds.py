"""Bounds are below what is simulated."""

import pytest

from schedsim.clusters import (
    Degrees,
    Training,
    get_architecture,
    get_fabric,
    rank_memory,
    step_time,
)
from schedsim.clusters.step_bounds import StepBounds

FABRIC = get_fabric("h100-80gb")
CASES = [
    ("llama3.2-1b", Degrees(fsdp=8), Training(seq=1024, recompute="selective")),
    ("llama3.2-1b", Degrees(fsdp=64), Training(seq=256, batch=4, num_micro_batches=4)),
    ("llama3.2-1b", Degrees(fsdp=4, tensor=2), Training(seq=1024, zero_stage=2)),
    ("llama3.2-1b", Degrees(fsdp=2, context=2), Training(seq=8192, recompute="full:8,none:8")),
    ("llama3.2-1b", Degrees(fsdp=2, pipeline=4), Training(seq=1024, batch=4, recompute="full")),
    (
        "llama3.2-1b",
        Degrees(fsdp=2, pipeline=2),
        Training(seq=512, batch=4, num_micro_batches=4, schedule="interleaved", num_chunks=2),
    ),
    (
        "llama3.2-1b",
        Degrees(fsdp=2, pipeline=4),
        Training(seq=512, batch=8, num_micro_batches=8, schedule="zero-bubble"),
    ),
    ("llama3.2-1b", Degrees(pipeline=2, tensor=2), Training(seq=512, batch=4, state="megatron")),
    (
        "llama3.2-1b",
        Degrees(fsdp=2, pipeline=4),
        Training(seq=1024, batch=4, recompute="none@host2"),
    ),
    ("llama3.2-1b", Degrees(fsdp=8), Training(seq=1024, recompute="none@host:4,full@host2:12")),
    ("deepseek-v2-lite", Degrees(fsdp=8, expert=4), Training(seq=512, recompute="selective")),
    ("mixtral-8x7b", Degrees(fsdp=8, tensor=2, expert=8), Training(seq=512, compiled_loss=True)),
]


@pytest.mark.parametrize(("name", "degrees", "training"), CASES)
def test_no_step_is_faster_or_smaller(name, degrees, training):
    """On any rank."""
    model = get_architecture(name)
    bounds = StepBounds(model, FABRIC)
    least_s = bounds.time_s(degrees, training)
    assert 0 < least_s <= step_time(model, degrees, training, FABRIC).step_s * (1 + 1e-9)
    for rank in {0, degrees.pipeline - 1}:
        found = rank_memory(model, degrees, training, FABRIC, rank)
        least = bounds.memory_bytes(degrees, training, rank)
        assert 0 < least <= found.peak_bytes
