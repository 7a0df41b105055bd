"""Offloaded layers: what they keep is on the host between their forward and their backward."""

from dataclasses import replace
from math import inf

import pytest

import schedsim
from schedsim.clusters import Degrees, Training, get_architecture, get_fabric, step_time
from schedsim.clusters.kept_names import without_host
from schedsim.clusters.rank_memory import issue_step, rank_memory
from schedsim.errors import SchedsimError

MODEL = get_architecture("llama3.2-1b")
FABRIC = get_fabric("h100-80gb")
POLICIES = ("none", "selective", "full", "keep=mixed+gate")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("compiled", [False, True])
def test_each_offloaded_layer_keeps_nothing_on_the_device(policy, compiled):
    """With every layer offloaded, what is alive as the loss runs does not grow with the layers."""
    training = Training(seq=2048, recompute=f"{policy}@host", compiled=compiled)
    short, long = replace(MODEL, num_layers=6), replace(MODEL, num_layers=10)

    def alive(model):
        found = issue_step(model, Degrees(fsdp=8), training, FABRIC, 0).simulated()
        run = found.run_names.index("logits 0")
        tensors = found.live_tensors(run)
        return sum(one.size_bytes for one in tensors if one.name.startswith("A "))

    assert alive(short) == alive(long) > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_bytes_on_the_host_are_those_that_leave_the_device(policy):
    """All layers but the last, whose backward comes first; by hand for ``full``."""
    training = Training(seq=2048, recompute=f"{policy}@host")
    found = rank_memory(MODEL, Degrees(fsdp=8), training, FABRIC)
    plain = replace(training, recompute=policy)
    before = rank_memory(MODEL, Degrees(fsdp=8), plain, FABRIC)
    assert before.host_bytes == 0
    assert found.host_bytes % (MODEL.num_layers - 1) == 0
    assert found.peak_bytes <= before.peak_bytes
    if policy == "full":
        assert found.host_bytes == (MODEL.num_layers - 1) * 2048 * MODEL.hidden * 2


@pytest.mark.parametrize("pipeline", [1, 4])
def test_a_faster_link_is_never_slower_and_a_free_one_costs_nothing(pipeline):
    """Times from a slow link to an instant one fall to those without offloading."""
    degrees = Degrees(fsdp=8, pipeline=pipeline)
    training = Training(seq=2048, batch=4, recompute="none@host", compiled=True)
    times = [
        step_time(MODEL, degrees, training, replace(FABRIC, host_bytes_per_s=rate)).step_s
        for rate in (5e9, 50e9, 500e9)
    ]
    instant = replace(FABRIC, host_bytes_per_s=inf, latency_s=0.0)
    free = step_time(MODEL, degrees, training, instant).step_s
    plain = replace(training, recompute=without_host(training.recompute))
    assert times == sorted(times, reverse=True)
    assert times[0] > 2 * times[2]
    assert free == pytest.approx(step_time(MODEL, degrees, plain, instant).step_s, rel=1e-9)
    copied = rank_memory(MODEL, degrees, training, FABRIC).host_bytes
    assert times[0] > copied / 5e9  # at least one way, one copy at a time


def test_copies_that_hide_cost_nothing():
    """As torchtune offloads what checkpoints keep: memory falls, time does not rise."""
    words = {"devices": 8, "seq": 8192, "compiled": True}
    plain = schedsim.cluster("llama3.2-1b", recompute="full", **words)
    hosted = schedsim.cluster("llama3.2-1b", recompute="full@host", **words)
    assert hosted.step_s == pytest.approx(plain.step_s, rel=1e-3)
    assert hosted.peak_bytes < plain.peak_bytes


@pytest.mark.parametrize("bad", ["none@hosts", "none@host0", "@host", "none@host-1", "fit@host"])
def test_words_that_say_nothing(bad):
    """Refused in one line."""
    with pytest.raises(SchedsimError, match="is not understood"):
        schedsim.cluster("llama3.2-1b", devices=8, seq=1024, recompute=bad)
