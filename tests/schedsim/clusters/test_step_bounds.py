"""Bounds are below what is simulated."""

import random
from dataclasses import replace

import pytest

from schedsim.clusters import (
    Degrees,
    Training,
    get_architecture,
    get_fabric,
    rank_memory,
    step_bounds,
    step_time,
)
from schedsim.clusters.recompute_ladder import RecomputeLadder, setting
from schedsim.clusters.search_space import SearchSpace
from schedsim.clusters.stages import rank_stages, split_stages
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


@pytest.mark.parametrize("state", ["fsdp2", "megatron", "bf16"])
@pytest.mark.parametrize(
    "order",
    [
        {"schedule": "zero-bubble"},
        {"schedule": "1f1b"},
        {"schedule": "interleaved", "num_chunks": 2},
    ],
    ids=["zero-bubble", "1f1b", "interleaved"],
)
def test_a_pipeline_without_copies_takes_its_bound(state, order):
    """With unlike stages too."""
    model, degrees = get_architecture("llama3.2-1b"), Degrees(fsdp=2, tensor=2, pipeline=4)
    training = Training(seq=1024, batch=8, num_micro_batches=8, state=state, **order)
    training = replace(training, recompute="full/selective/none/full:2,none:2")
    bounds = StepBounds(model, FABRIC)
    assert bounds.is_exact(degrees, training)
    found = step_time(model, degrees, training, FABRIC).step_s
    assert bounds.time_s(degrees, training) == pytest.approx(found, rel=1e-12)


def test_a_zero_bubble_step_is_not_said_to_take_longer():
    """Gradients of weights fill the end, for which the bound left a fifth of the step."""
    model, degrees = get_architecture("llama3-8b"), Degrees(pipeline=8)
    training = Training(seq=4096, batch=8, num_micro_batches=8, schedule="zero-bubble")
    found = step_time(model, degrees, training, FABRIC).step_s
    assert StepBounds(model, FABRIC).time_s(degrees, training) <= found * (1 + 1e-12)


def test_an_order_too_long_to_be_played_has_a_lower_bound(monkeypatch):
    """The closed form, which is not the time of the step."""
    model, degrees = get_architecture("llama3.2-1b"), Degrees(fsdp=2, pipeline=4)
    bounds = StepBounds(model, FABRIC)
    for schedule, chunks in (("1f1b", 1), ("zero-bubble", 1), ("interleaved", 2)):
        order = {"schedule": schedule, "num_chunks": chunks}
        training = Training(seq=1024, batch=8, num_micro_batches=8, **order)
        played = bounds.time_s(degrees, training)
        with monkeypatch.context() as patched:
            patched.setattr(step_bounds, "MOST_PLAYED", 1)
            assert not bounds.is_exact(degrees, training)
            assert 0.8 * played < bounds.time_s(degrees, training) <= played * (1 + 1e-12)


def random_step(rng):
    """A small model, a fabric with quick or slow links, and consistent settings of any kind."""
    name = rng.choice(["llama3.2-1b", "mixtral-8x7b", "deepseek-v2-lite", "gpt2-xl"])
    model = replace(get_architecture(name), num_layers=rng.choice([2, 4]))
    fabric = replace(
        FABRIC,
        near_bytes_per_s=FABRIC.near_bytes_per_s * 10 ** rng.uniform(-2, 1),
        far_bytes_per_s=FABRIC.far_bytes_per_s * 10 ** rng.uniform(-2, 1),
        host_bytes_per_s=FABRIC.host_bytes_per_s * 10 ** rng.uniform(-1, 2),
    )
    training = Training(
        seq=rng.choice([512, 1024, 8192]),
        state=rng.choice(["fsdp2", "fsdp2", "megatron", "bf16"]),
        compiled=rng.random() < 0.5,
        compiled_loss=rng.random() < 0.5,
        regather=rng.random() < 0.3,
        eager_attention=rng.random() < 0.2,
        float8=rng.random() < 0.2,
        separate_head=rng.random() < 0.3,
        async_tensor=rng.random() < 0.2,
        whole_sequence=rng.random() < 0.2,
    )
    fixed = {"whole_experts": True} if rng.random() < 0.2 else {}
    space = SearchSpace(rng.choice([2, 4, 8]), 8, fixed, training)
    every = list(space.candidates(model, fabric))
    if not every:
        return random_step(rng)
    one = rng.choice(every)
    entries = RecomputeLadder(StepBounds(model, fabric)).entries(one.degrees, one.training)
    stages = split_stages(model, one.degrees, one.training)
    policies = []
    for rank in range(one.degrees.pipeline):
        size = max(len(stage.layers) for stage in rank_stages(stages, one.degrees, rank))
        policies.append(setting(entries, rng.randrange(len(entries)), size))
    return model, fabric, one.degrees, replace(one.training, recompute="/".join(policies))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_no_random_step_is_faster_or_smaller(seed):
    """On all ranks, with any recomputation of each, and with links of any rate."""
    rng = random.Random(seed)
    for _ in range(12):
        model, fabric, degrees, training = random_step(rng)
        bounds = StepBounds(model, fabric)
        least_s = bounds.time_s(degrees, training)
        assert least_s <= step_time(model, degrees, training, fabric).step_s * (1 + 1e-9)
        for rank in range(degrees.pipeline):
            found = rank_memory(model, degrees, training, fabric, rank).peak_bytes
            assert bounds.memory_bytes(degrees, training, rank) <= found
