"""The head: whole, or chunk by chunk with its loss."""

import pytest

from schedsim import SchedsimError
from schedsim.clusters import (
    Degrees,
    Training,
    get_architecture,
    get_fabric,
    rank_memory,
    step_time,
)
from schedsim.clusters.rank_memory import issue_step
from schedsim.clusters.step_bounds import StepBounds

MODEL, FABRIC = get_architecture("llama3-8b"), get_fabric("h100-80gb")
CHUNKS = {"loss_chunks": 8, "chunked_head": True, "separate_head": True, "recompute": "full"}


def largest(step, first):
    """The most bytes of tensors whose name begins with `first` at once."""
    return max(
        sum(one.size_bytes for one in step.live_tensors(run) if one.name.startswith(first))
        for run in range(step.num_runs)
    )


@pytest.mark.parametrize(("settings", "copies"), [({}, 6), ({"compiled_loss": True}, 2)])
def test_only_a_chunk_of_the_logits_exists(settings, copies):
    """An eighth of what a whole head has, forward and backward."""
    training = Training(batch=2, num_micro_batches=1, **CHUNKS, **settings)
    step = issue_step(MODEL, Degrees(fsdp=64), training, FABRIC, 0).simulated()
    logits = 2 * 2 * 8192 * MODEL.vocab
    assert largest(step, "L ") == pytest.approx(copies * logits // 8, rel=1e-3)
    sizes = {name: size for op in step._graph.ops for name, size in op.writes.items()}
    assert sizes["D rows 7 0"] == 4 * 2 * 8192 * MODEL.hidden  # in fp32, whole
    assert sizes["G sum head 7 0"] == 4 * MODEL.vocab * MODEL.hidden


def test_a_head_in_chunks_does_as_much_arithmetic():
    """The same products, in parts; a step takes hardly longer, and needs less memory."""
    degrees = Degrees(fsdp=64)
    whole = Training(batch=2, num_micro_batches=1, recompute="full", separate_head=True)
    parts = Training(batch=2, num_micro_batches=1, **CHUNKS)
    taken = [step_time(MODEL, degrees, one, FABRIC).step_s for one in (whole, parts)]
    assert taken[0] * 0.99 < taken[1] < taken[0] * 1.02
    held = [rank_memory(MODEL, degrees, one, FABRIC).peak_bytes for one in (whole, parts)]
    assert held[1] < held[0] - 4 * 2 * 2 * 8192 * MODEL.vocab


@pytest.mark.parametrize("settings", [{}, {"state": "bf16", "separate_head": False}])
def test_bounds_hold(settings):
    """Of time and of memory, over several micro-batches."""
    training = Training(**{"seq": 1024, "batch": 4, "num_micro_batches": 4} | CHUNKS | settings)
    model, degrees = get_architecture("gemma3-1b"), Degrees(fsdp=8)
    bounds = StepBounds(model, FABRIC)
    taken = step_time(model, degrees, training, FABRIC).step_s
    assert 0.8 * taken < bounds.time_s(degrees, training) <= taken * (1 + 1e-9)
    held = rank_memory(model, degrees, training, FABRIC).peak_bytes
    assert 0.5 * held < bounds.memory_bytes(degrees, training, 0) <= held


@pytest.mark.parametrize(
    ("degrees", "settings", "message"),
    [
        (Degrees(), {"chunked_head": True}, "--chunked-head changes nothing"),
        (Degrees(pipeline=2), {"chunked_head": True, "loss_chunks": 8}, "with a pipeline"),
        (Degrees(), CHUNKS | {"loss_chunks": 7}, "--loss-chunks 7 does not divide the 8192"),
    ],
)
def test_refuses_what_is_not_modelled(degrees, settings, message):
    """Naming the option."""
    training = Training(batch=degrees.pipeline, **settings)
    with pytest.raises(SchedsimError, match=message):
        training.check(MODEL, degrees)
