"""The bound on a rank's memory is below what is simulated, and near it."""

import pytest

from schedsim.clusters import (
    Degrees,
    Libraries,
    Training,
    get_architecture,
    get_fabric,
    rank_memory,
)
from schedsim.clusters.step_bounds import StepBounds

FABRIC = get_fabric("h100-80gb")
FOUR = {"seq": 1024, "batch": 4, "num_micro_batches": 4}
CASES = [
    # The embedding alone is freed after its last forward.
    (Degrees(fsdp=64, pipeline=2), {**FOUR, "schedule": "interleaved", "num_chunks": 2}),
    (Degrees(fsdp=64), {**FOUR, "zero_stage": 2, "separate_head": True}),
    (Degrees(fsdp=8, pipeline=4), {**FOUR, "schedule": "gpipe", "compiled_loss": True}),
    (Degrees(fsdp=8, pipeline=2), {**FOUR, "schedule": "zero-bubble", "compiled": True}),
    (Degrees(fsdp=64, tensor=2), {**FOUR, "float8": True, "compiled": True}),
    (Degrees(fsdp=8), {"seq": 2048, "batch": 2, "loss_chunks": 4}),
]


@pytest.mark.parametrize("recompute", ["full", "none@host2"])
@pytest.mark.parametrize(("degrees", "options"), CASES)
def test_below_what_is_simulated(degrees, options, recompute):
    """On both ends of a pipeline, with gradients of earlier micro-batches or without."""
    model = get_architecture("llama3.2-1b")
    training = Training(recompute=recompute, **options)
    bounds = StepBounds(model, FABRIC)
    for rank in {0, degrees.pipeline - 1}:
        found = rank_memory(model, degrees, training, FABRIC, rank).peak_bytes
        assert 0.5 * found <= bounds.memory_bytes(degrees, training, rank) <= found


def test_logits_and_whole_gradients_count():
    """A step of Llama 3 405B whose resident state alone would fit is known not to."""
    model = get_architecture("llama3-405b")
    training = Training(seq=8192, batch=1, recompute="full")
    least = StepBounds(model, FABRIC).memory_bytes(Degrees(fsdp=512), training, 0)
    inputs = model.num_layers * training.seq * model.hidden * 2
    logits = 12 * training.seq * model.vocab
    ends = 2 * (model.embedding_parameters + model.head_parameters)
    assert least >= inputs + logits + ends


@pytest.mark.parametrize("state", ["fsdp2", "bf16", "megatron"])
def test_an_input_that_no_backward_reads_is_not_counted(state):
    """A norm in single precision keeps its own copy."""
    model = get_architecture("gpt2-xl")
    training = Training(
        seq=4096, recompute="none", libraries=Libraries(wide_norm=True), state=state
    )
    bound = StepBounds(model, FABRIC).memory_bytes(Degrees(fsdp=64), training, 0)
    assert bound <= rank_memory(model, Degrees(fsdp=64), training, FABRIC).peak_bytes
