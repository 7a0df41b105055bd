"""Degrees of parallelism, and what they do not go with."""

import pytest

from schedsim.clusters import Degrees, get_architecture
from schedsim.errors import SchedsimError


def test_numbers_of_ranks():
    """Experts are split among ranks that are counted already."""
    degrees = Degrees(fsdp=4, replicate=2, tensor=8, pipeline=3, context=2, expert=8)
    assert (degrees.num_devices, degrees.shards, degrees.data) == (384, 8, 8)
    Degrees(fsdp=4, tensor=2, expert=8, whole_experts=True).check(get_architecture("mixtral-8x7b"))


@pytest.mark.parametrize(
    ("degrees", "model", "says"),
    [
        (Degrees(tensor=3), "llama3-8b", "--tensor 3 does not divide"),
        (Degrees(tensor=16), "llama3-8b", "8 heads of keys"),
        (Degrees(pipeline=33), "llama3-8b", "exceeds the 32 layers"),
        (Degrees(fsdp=8, expert=8), "llama3-8b", "has no experts"),
        (Degrees(fsdp=8, expert=3), "mixtral-8x7b", "does not divide the 8 experts"),
        (Degrees(fsdp=4, expert=8), "mixtral-8x7b", "does not divide --fsdp times --context"),
        (Degrees(fsdp=0), "llama3-8b", "--fsdp 0 is not a whole number"),
        (Degrees(tensor=2, whole_experts=True), "llama3-8b", "--whole-experts changes nothing"),
        (Degrees(fsdp=2, whole_experts=True), "mixtral-8x7b", "--whole-experts changes nothing"),
        (
            Degrees(fsdp=2, tensor=2, expert=8, whole_experts=True),
            "mixtral-8x7b",
            "--expert 8 does not divide --fsdp times --context times --tensor, 4",
        ),
        (Degrees(tensor=2, whole_experts=1), "mixtral-8x7b", "whole_experts 1 is not true"),
    ],
)
def test_what_does_not_go_together_is_refused(degrees, model, says):
    """The message names the option."""
    with pytest.raises(SchedsimError, match=says):
        degrees.check(get_architecture(model))


@pytest.mark.parametrize(
    ("tensor", "model", "hint"),
    [
        (3, "llama3-8b", "1, 2, 4 and 8 do"),
        (8, "qwen3-235b-a22b", "1, 2 and 4 do"),
        (2, "gemma3-1b", "only 1 does"),
        (3, "deepseek-v2-lite", "1, 2, 4, 8 and 16 do"),
    ],
)
def test_the_degrees_that_divide_all_heads_are_named(tensor, model, hint):
    """Those of queries and those of keys; a latent serves all heads."""
    with pytest.raises(SchedsimError) as caught:
        Degrees(tensor=tensor).check(get_architecture(model))
    assert caught.value.hint == hint
