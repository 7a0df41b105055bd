"""Settings of a step."""

import pytest

from schedsim.clusters import Degrees, Training, get_architecture
from schedsim.errors import SchedsimError


def test_micro_batches_follow_the_pipeline():
    """One a stage unless they are given."""
    assert Training(batch=32).micro_batches(Degrees(pipeline=8)) == 8
    assert Training(batch=32).micro_batch(Degrees(pipeline=8)) == 4
    assert Training(batch=32, num_micro_batches=4).micro_batch(Degrees()) == 8


def test_policies_are_spread_over_a_stage():
    """Counts in order; the last goes on, what is too much is left out."""
    assert Training(recompute="full:2,none:1").policies(4) == ["full", "full", "none", "none"]
    assert Training(recompute="full:9,none:1").policies(2) == ["full", "full"]


@pytest.mark.parametrize(
    ("settings", "degrees", "says"),
    [
        ({"batch": 3}, Degrees(pipeline=2), "not a multiple of 2 micro-batches"),
        ({"seq": 100}, Degrees(tensor=8), "--seq 100 is not a multiple of 8"),
        ({"seq": 24}, Degrees(context=4, tensor=2), "not a multiple of 16"),
        ({"recompute": "some"}, Degrees(), "--recompute 'some'"),
        ({"schedule": "other"}, Degrees(), "--schedule 'other' is unknown"),
        ({"num_chunks": 2, "batch": 2}, Degrees(pipeline=2), "needs --schedule interleaved"),
        ({"schedule": "interleaved", "batch": 2}, Degrees(pipeline=2), "is the order 1f1b"),
        ({"state": "fp8"}, Degrees(), "--state 'fp8' is unknown"),
        ({"zero_stage": 1}, Degrees(), "--zero 1"),
        ({"batch": 0}, Degrees(), "batch 0"),
        ({"schedule": "gpipe"}, Degrees(), "--schedule gpipe changes nothing"),
        ({"zero_stage": 2, "state": "bf16"}, Degrees(), "--zero 2 changes nothing"),
        ({"loss_chunks": 2, "compiled_loss": True}, Degrees(), "--loss-chunks changes nothing"),
        ({"loss_chunks": 2, "wide_logits": True}, Degrees(), "wide_logits changes nothing"),
        ({"recompute": "core:1,full:1"}, Degrees(), "--recompute core changes nothing"),
        ({"reduce_bf16": True, "state": "megatron"}, Degrees(), "--reduce-bf16 changes nothing"),
        ({"reduce_bf16": True, "zero_stage": 2}, Degrees(fsdp=8), "--reduce-bf16 where whole"),
        ({"reduce_bf16": True, "batch": 2}, Degrees(pipeline=2), "--reduce-bf16 where whole"),
        ({"overlap_tensor": True}, Degrees(tensor=2), "--overlap-tensor changes nothing"),
        (
            {"overlap_tensor": True, "whole_sequence": True, "state": "megatron"},
            Degrees(tensor=2),
            "--overlap-tensor changes nothing",
        ),
        ({"recompute": None}, Degrees(), "recompute None is no text"),
        ({"recompute": 3}, Degrees(), "recompute 3 is no text"),
        ({"compiled": "no"}, Degrees(), "compiled 'no' is not true or false"),
        ({"float8": 1}, Degrees(), "float8 1 is not true or false"),
        ({"zero_stage": "3"}, Degrees(), "--zero '3' is not 2 or 3"),
        ({"libraries": "2.8"}, Degrees(), "libraries '2.8' is no Libraries"),
        ({"loss_chunks": 8193}, Degrees(), "--loss-chunks 8193 exceeds the 8192 tokens"),
        (
            {"state": "bf16", "optimizer_in_backward": True, "batch": 2, "num_micro_batches": 2},
            Degrees(),
            "--optimizer-in-backward with 2 micro-batches",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(settings, degrees, says):
    """The message names the option."""
    with pytest.raises(SchedsimError, match=says):
        Training(**settings).check(get_architecture("llama3-8b"), degrees)


def test_no_sequence_is_longer_than_the_learned_positions():
    """Whatever splits it; turned positions have no end."""
    long = Training(seq=2048)
    with pytest.raises(SchedsimError, match="--seq 2048 exceeds the 1024 positions of gpt2"):
        long.check(get_architecture("gpt2"), Degrees(context=2))
    Training(seq=1024).check(get_architecture("gpt2"), Degrees())
    Training(seq=1 << 20).check(get_architecture("llama3-8b"), Degrees())
