"""The list of recomputations that a search may choose from."""

from itertools import pairwise

import pytest

from schedsim.clusters import Degrees, Training, get_architecture, get_fabric
from schedsim.clusters.recompute_ladder import PLAIN, RecomputeLadder, setting
from schedsim.clusters.step_bounds import StepBounds

FABRIC = get_fabric("h100-80gb")


@pytest.mark.parametrize("name", ["llama3-8b", "deepseek-v3", "gpt3-175b"])
@pytest.mark.parametrize(
    "words", [{}, {"compiled": True, "float8": True}, {"state": "megatron", "regather": True}]
)
def test_each_entry_contains_the_one_before(name, words):
    """More runs again, less is kept, and no time is won."""
    model, degrees = get_architecture(name), Degrees(tensor=2)
    training = Training(seq=1024, **words)
    bounds = StepBounds(model, FABRIC)
    entries = RecomputeLadder(bounds).entries(degrees, training)
    assert (entries[0], entries[-2:]) == ("none", ("full:1/2", "full"))
    assert any(one.startswith("keep=") for one in entries)
    experts = model.experts is not None
    costs = [
        bounds.layer_costs(degrees, training, experts, one) for one in entries if ":" not in one
    ]
    for one, other in pairwise(costs):
        assert one.again < other.again
        assert one.kept_bytes > other.kept_bytes
        assert one.backward_s <= other.backward_s


def test_plain_entries_and_settings_of_stages():
    """Words that frameworks have; half of an odd number of layers."""
    ladder = RecomputeLadder(StepBounds(get_architecture("llama3-8b"), FABRIC), keep=False)
    assert ladder.entries(Degrees(), Training()) == PLAIN
    assert setting(PLAIN, 2, 5) == "full:3,selective:2"
    assert setting(PLAIN, 2, 1) == "full"
    assert setting(PLAIN, 1, 5) == "selective"
