"""The list of recomputations that a search may choose from."""

from dataclasses import replace
from itertools import pairwise

import pytest

from schedsim.clusters import Degrees, Training, get_architecture, get_fabric
from schedsim.clusters.kept_names import on_host, split_host
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
    every = RecomputeLadder(bounds).entries(degrees, training)
    entries = RecomputeLadder(bounds, offload=False).entries(degrees, training)
    assert (entries[0], entries[-2:]) == ("none", ("full:1/2", "full"))
    assert tuple(one for one in every if "@" not in one) == entries
    assert len(every) > len(entries)
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
    bounds = StepBounds(get_architecture("llama3-8b"), FABRIC)
    ladder = RecomputeLadder(bounds, keep=False, offload=False)
    assert ladder.entries(Degrees(), Training()) == PLAIN
    assert setting(PLAIN, 2, 5) == "full:3,selective:2"
    assert setting(PLAIN, 2, 1) == "full"
    assert setting(PLAIN, 1, 5) == "selective"


@pytest.mark.parametrize("rate", [10e9, 57e9, 450e9])
def test_copies_hide_behind_the_layers_between_them(rate):
    """Of as many layers as a link allows: a faster one never fewer, each policy once."""
    bounds = StepBounds(get_architecture("llama3-8b"), replace(FABRIC, host_bytes_per_s=rate))
    degrees, training = Degrees(), Training(compiled=True)
    for one in RecomputeLadder(bounds).entries(degrees, training):
        base, every = split_host(one)
        if not every:
            continue
        costs = bounds.layer_costs(degrees, training, False, on_host(base))
        copy_s = bounds.fabric.copy_s(costs.host_bytes)
        room_s = min(costs.forward_s, costs.backward_s)
        assert copy_s <= every * room_s
        assert every == 1 or copy_s > (every - 1) * room_s or every in (6, 8)


def test_a_slow_link_offloads_nothing():
    """No number of layers hides its copies."""
    bounds = StepBounds(get_architecture("llama3-8b"), replace(FABRIC, host_bytes_per_s=1e6))
    entries = RecomputeLadder(bounds).entries(Degrees(), Training())
    assert not any("@" in one for one in entries)
