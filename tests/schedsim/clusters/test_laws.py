"""Laws that predictions of clusters keep, whatever the setting."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from tiers import examples

import schedsim
from schedsim import SchedsimError
from schedsim.clusters import choose
from schedsim.workloads import get_architecture

DENSE = ("llama3.2-1b", "gemma3-1b", "mistral-7b", "qwen3-0.6b")
WITH_EXPERTS = ("mixtral-8x7b", "deepseek-v2-lite", "gpt-oss-20b")
STATE = ("parameters", "optimizer state", "gradients")


@st.composite
def _settings(draw):
    """(model of few layers, settings of `schedsim.cluster`)."""
    name = draw(st.sampled_from(DENSE + WITH_EXPERTS))
    whole = get_architecture(name)
    model = replace(whole, num_layers=4, num_windowed=min(whole.num_windowed, 2))
    found = {
        "devices": draw(st.sampled_from([4, 8, 16, 32])),
        "device": draw(st.sampled_from(["h100", "a100-40gb", "rtx4090"])),
        "seq": draw(st.sampled_from([512, 1024, 2048])),
        "batch": draw(st.sampled_from([4, 8])),
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "compiled": draw(st.booleans()),
        "tensor": draw(st.sampled_from([1, 1, 2])),
        "pipeline": draw(st.sampled_from([1, 1, 2])),
        "context": draw(st.sampled_from([1, 1, 2])),
    }
    if name in WITH_EXPERTS:
        found["expert"] = draw(st.sampled_from([1, 2, 4]))
    if found["pipeline"] > 1:
        found["schedule"] = draw(st.sampled_from(["gpipe", "1f1b", "zero-bubble"]))
    return model, found


def _predicted(model, given_settings):
    try:
        return schedsim.cluster(model, **given_settings)
    except SchedsimError:
        assume(False)


def _state_bytes(step):
    return max(sum(rank.kinds.get(kind, 0) for kind in STATE) for rank in step.ranks)


@given(_settings(), st.sampled_from(["batch", "seq"]))
@settings(max_examples=examples(30), deadline=None)
def test_more_tokens_take_no_less_time_and_memory(drawn, what):
    """Of a rank's sequences, or of each sequence."""
    model, few = drawn
    many = {**few, what: 2 * few[what]}
    one, other = _predicted(model, few), _predicted(model, many)
    assert other.step_s >= one.step_s
    assert other.peak_bytes >= one.peak_bytes


@given(_settings(), st.sampled_from(["fsdp", "tensor", "expert"]))
@settings(max_examples=examples(30), deadline=None)
def test_more_shards_hold_no_more_state(drawn, what):
    """Of parameters, their gradients and moments on the fullest rank."""
    model, few = drawn
    many = {**few, "devices": 2 * few["devices"]}
    if what != "fsdp":
        assume(what != "expert" or "expert" in few)
        many = {**many, what: 2 * few.get(what, 1)}
    one, other = _predicted(model, few), _predicted(model, many)
    assert _state_bytes(other) <= _state_bytes(one)


@given(_settings())
@settings(max_examples=examples(30), deadline=None)
def test_recomputation_saves_memory_and_takes_time(drawn):
    """All of it, beside none."""
    model, given_settings = drawn
    none = _predicted(model, {**given_settings, "recompute": "none"})
    full = _predicted(model, {**given_settings, "recompute": "full"})
    assert full.peak_bytes <= none.peak_bytes
    assert full.step_s >= none.step_s


@pytest.mark.slow
@given(_settings(), st.sampled_from([0.3, 0.6, 1.0]))
@settings(max_examples=examples(8), deadline=None, phases=[Phase.explicit, Phase.generate])
def test_the_bound_of_a_search_is_never_above_its_choice(drawn, share):
    """No runner-up is faster, and all of them fit."""
    model, found = drawn
    plain = _predicted(model, {**found, "recompute": "none"})
    budget = int(share * plain.reserved_bytes)
    wanted = {key: found[key] for key in ("devices", "device", "seq")}
    try:
        choice = choose(model, budget, global_batch=found["devices"], effort=6, **wanted)
    except SchedsimError:
        assume(False)
    assume(choice.best is not None)
    others = [choice.best, *choice.runners_up]
    assert choice.lower_bound_s <= choice.best.step_s * (1 + 1e-9)
    assert choice.best.step_s == min(one.step_s for one in others)
    assert all(one.reserved_bytes <= budget for one in others)
