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
    ],
)
def test_what_does_not_go_together_is_refused(settings, degrees, says):
    """The message names the option."""
    with pytest.raises(SchedsimError, match=says):
        Training(**settings).check(get_architecture("llama3-8b"), degrees)
