"""Memory of a rank, against ZeRO's formulas and published peaks."""

from dataclasses import replace

import pytest

from schedsim.clusters import (
    Architecture,
    AttentionSizes,
    Degrees,
    Libraries,
    Training,
    get_architecture,
    get_fabric,
    rank_memory,
)
from schedsim.clusters.rank_memory import (
    first_micro_batch_bytes,
    issue_step,
    lasting_bytes,
    rank_actions,
    representative_micro_batches,
)
from schedsim.clusters.stages import split_stages

FABRIC = get_fabric("h100-96gb")
TINY = Architecture("tiny", 4, 512, 8192, 2048, AttentionSizes(8, 8, 64))


def state(name, degrees, **settings):
    """Bytes between steps."""
    model, training = get_architecture(name), Training(**settings)
    return lasting_bytes(model, degrees, training, split_stages(model, degrees, training))


@pytest.mark.parametrize("ranks", [1, 8, 64])
def test_zero_formulas(ranks):
    """Stage 3: 12 bytes a parameter over the ranks; stage 1: 6, and 12 over them (ZeRO, fig. 1)."""
    count = get_architecture("llama3-8b").num_parameters
    sharded = state("llama3-8b", Degrees(fsdp=ranks)).total
    assert sharded == pytest.approx(12 * count / ranks, rel=1e-6)
    first = state("llama3-8b", Degrees(fsdp=ranks), state="megatron").total
    assert first == pytest.approx(6 * count + 12 * count / ranks, rel=1e-6)
    assert state("llama3-8b", Degrees(), state="bf16").total == 6 * count


def test_shards_over_the_context_too():
    """Parameters are sharded over both kinds of ranks that read tokens."""
    one = state("llama3-8b", Degrees(fsdp=8)).total
    assert state("llama3-8b", Degrees(fsdp=2, context=4)).total == one


def test_each_replica_has_a_state_of_its_own():
    """Of FSDP2 as of Megatron, in which replicas shared one before."""
    for name in ("fsdp2", "megatron"):
        one = state("llama3-8b", Degrees(fsdp=8), state=name).total
        assert state("llama3-8b", Degrees(fsdp=8, replicate=4), state=name).total == one


@pytest.mark.parametrize(
    "degrees",
    [
        Degrees(fsdp=8, expert=4),
        Degrees(fsdp=4, context=2, tensor=2, expert=8),
        Degrees(fsdp=4, tensor=2, expert=8, whole_experts=True),
        Degrees(fsdp=4, tensor=2, whole_experts=True),
    ],
)
def test_moments_of_experts_are_spread_over_the_ranks_that_hold_the_same_ones(degrees):
    """Every parameter's 12 bytes are somewhere; an expert has fewer replicas than the rest."""
    model = get_architecture("mixtral-8x7b")
    found = state("mixtral-8x7b", degrees, state="megatron")
    ranks = degrees.num_devices
    assert found.moments * ranks == pytest.approx(12 * model.num_parameters, rel=1e-6)


# torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, tables 1 to 3: GiB reserved; in use, as
# PyTorch's own allocator says.
@pytest.mark.parametrize(
    ("degrees", "settings", "published", "in_use"),
    [
        (Degrees(fsdp=8), {}, 82.4, 68.38),
        (Degrees(fsdp=8), {"compiled": True}, 77.0, None),
        (Degrees(fsdp=128), {}, 67.0, None),
        (Degrees(fsdp=128), {"compiled": True}, 62.0, None),
    ],
)
def test_published_peaks_of_llama3_8b(degrees, settings, published, in_use):
    """Within one percent."""
    training = Training(batch=2, recompute="selective", **settings)
    found = rank_memory(get_architecture("llama3-8b"), degrees, training, FABRIC)
    assert found.reserved_bytes / 2**30 == pytest.approx(published, rel=0.01)
    assert sum(found.kinds.values()) == found.peak_bytes <= found.reserved_bytes
    if in_use is not None:
        assert found.peak_bytes / 2**30 == pytest.approx(in_use, rel=0.001)


@pytest.mark.parametrize(
    ("rank", "settings", "in_use", "reserved"),
    [
        (0, {"batch": 8, "seq": 32768}, 69.36, None),
        (1, {"batch": 8, "seq": 32768}, 64.46, 74.34),
        (7, {"batch": 8, "seq": 32768}, 63.26, 73.19),
        (0, {"batch": 32}, 69.35, 86.50),
        (0, {"batch": 32, "schedule": "interleaved", "num_chunks": 2}, 54.01, None),
        (7, {"batch": 32, "schedule": "interleaved", "num_chunks": 2}, 60.51, None),
    ],
)
def test_ranks_of_a_pipeline_as_pytorch_runs_them(rank, settings, in_use, reserved):
    """Llama 3 405B on 512 by PyTorch's schedules and allocator, in GiB: sharded_pipeline.py."""
    model = get_architecture("llama3-405b")
    degrees = Degrees(fsdp=8, tensor=8, pipeline=8)
    found = rank_memory(model, degrees, Training(recompute="full", **settings), FABRIC, rank)
    several = "schedule" in settings
    assert found.peak_bytes / 2**30 == pytest.approx(in_use, rel=0.007 if several else 0.001)
    if reserved is not None:
        assert found.reserved_bytes / 2**30 == pytest.approx(reserved, rel=0.01)


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble", "interleaved"])
def test_a_part_of_the_micro_batches_shows_the_peak(schedule):
    """It is that of all of them played: the last stage holds the outputs of those that are not."""
    degrees = Degrees(pipeline=2, fsdp=2)
    sizes = {"seq": 512, "schedule": schedule, "num_chunks": 2 if schedule == "interleaved" else 1}
    training = Training(batch=12, num_micro_batches=12, **sizes)
    assert representative_micro_batches(degrees, training) == (
        8 if schedule == "interleaved" else 4
    )
    for rank in (0, 1):
        part, every = (
            issue_step(TINY, degrees, training, FABRIC, rank, most=most).simulated().peak_bytes
            for most in (None, 0)
        )
        assert part == every


@pytest.mark.parametrize(
    "settings",
    [
        {"num_micro_batches": 4},
        {"num_micro_batches": 1, "compiled": True},
        {"num_micro_batches": 2, "recompute": "full"},
        {"num_micro_batches": 4, "recompute": "keep=mixed+gate", "compiled_loss": True},
        {"num_micro_batches": 4, "recompute": "selective", "loss_chunks": 4},
    ],
)
@pytest.mark.parametrize("degrees", [Degrees(), Degrees(fsdp=4, tensor=2), Degrees(context=2)])
def test_the_first_micro_batch_needs_no_more_than_the_step(degrees, settings):
    """Its peak is that of the step, where there is no other, and is not far below else."""
    training = Training(seq=1024, batch=4, **settings)
    first = first_micro_batch_bytes(TINY, degrees, training, FABRIC)
    whole = rank_memory(TINY, degrees, training, FABRIC)
    assert 0.75 * whole.peak_bytes <= first <= whole.peak_bytes <= whole.reserved_bytes
    if settings["num_micro_batches"] == 1:
        assert first == whole.peak_bytes


def test_actions_without_a_pipeline():
    """One micro-batch after the other."""
    training = Training(batch=4, num_micro_batches=4)
    assert [str(one) for one in rank_actions(Degrees(), training, 0, 2)] == [
        "F0.0",
        "B0.0",
        "F0.1",
        "B0.1",
    ]


def test_more_recomputation_needs_less():
    """None, selective, full; and a mixture lies between."""
    model, degrees = get_architecture("llama3-8b"), Degrees(fsdp=8)
    peaks = [
        rank_memory(model, degrees, Training(seq=4096, recompute=one), FABRIC).peak_bytes
        for one in ("none", "full:8,none:24", "selective", "full")
    ]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == 4


def test_wide_norms_keep_what_pytorch_keeps():
    """In use by four layers of Llama 2 7B, eager, on the dry CUDA device: the last norm counts."""
    four = replace(get_architecture("llama2-7b"), num_layers=4)
    training = Training(
        seq=2048,
        batch=8,
        recompute="full",
        wide_logits=True,
        held_logits=True,
        libraries=Libraries(wide_norm=True),
    )
    found = rank_memory(four, Degrees(fsdp=8), training, FABRIC)
    assert found.peak_bytes == pytest.approx(12006604288, rel=0.003)


@pytest.mark.parametrize(("apart", "reserved"), [(True, 30.41), (False, 28.67)])
def test_packed_gradients_lie_apart_in_early_pytorch(apart, reserved):
    """Llama 2 7B on 8, GiB reserved on the dry CUDA device, by torch 2.4 and by 2.15."""
    training = Training(
        seq=2048,
        batch=8,
        recompute="full",
        wide_logits=True,
        held_logits=True,
        libraries=Libraries(wide_norm=True, packed_apart=apart),
    )
    found = rank_memory(get_architecture("llama2-7b"), Degrees(fsdp=8), training, FABRIC)
    assert found.peak_bytes / 2**30 == pytest.approx(22.70, rel=0.005)
    assert found.reserved_bytes / 2**30 == pytest.approx(reserved, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("degrees", "published"),
    [(Degrees(fsdp=8), 32.07), (Degrees(fsdp=4, tensor=2), 20.70)],
)
def test_a_traced_graph_reserves_on_one_stream(degrees, published):
    """8B with all recomputed (torchtitan's pull request 3429), which runs as a CUDA graph."""
    model = get_architecture("llama3-8b")
    training = Training(
        recompute="full",
        separate_head=True,
        fused_optimizer=True,
        expandable=True,
        libraries=Libraries(traced=True),
    )
    found = rank_memory(model, degrees, training, FABRIC)
    assert found.reserved_bytes / 2**30 == pytest.approx(published, rel=0.07)
    eager = rank_memory(model, degrees, replace(training, libraries=Libraries()), FABRIC)
    assert eager.reserved_bytes - eager.peak_bytes > found.reserved_bytes - found.peak_bytes
