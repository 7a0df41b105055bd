"""Steps of earlier libraries."""

from dataclasses import fields

import pytest

import schedsim
from schedsim.clusters import Libraries
from schedsim.errors import SchedsimError

PIPELINE = {
    "devices": 128,
    "tensor": 2,
    "pipeline": 8,
    "batch": 32,
    "num_micro_batches": 8,
    "seq": 2048,
    "recompute": "full",
}


@pytest.mark.parametrize(
    ("version", "ways"),
    [
        ("2.4", {"packed_apart", "held_outputs", "wide_norm", "handed_always", "held_messages"}),
        ("2.5.1+cu124", {"held_outputs", "wide_norm", "handed_always", "held_messages"}),
        ("2.8", {"wide_norm", "handed_always", "held_messages"}),
        ("2.9.0", {"held_messages"}),
        ("2.14", {"held_messages"}),
        ("2.15", set()),
    ],
)
def test_each_way_ends_with_the_version_whose_code_has_another(version, ways):
    """As read in the code of PyTorch 2.3 to 2.15."""
    found = Libraries.of_torch(version)
    assert {one.name for one in fields(found) if getattr(found, one.name)} == ways


def test_ways_of_other_libraries_are_added():
    assert Libraries.of_torch("2.15", whole_heads=True) == Libraries(whole_heads=True)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("2", "no version"),
        ("two.eight", "no version"),
        ("", "no version"),
        ("1.13", "not read"),
        ("2.2", "not read"),
        ("2.16", "not read"),
        ("3.1", "not read"),
    ],
)
def test_other_versions_are_refused(version, message):
    with pytest.raises(SchedsimError, match=message) as error:
        schedsim.cluster("llama3-8b", devices=8, torch=version)
    assert "2." in error.value.hint


def test_a_version_is_no_setting_beside_the_libraries():
    with pytest.raises(SchedsimError, match="torch is part of libraries"):
        schedsim.cluster("llama3-8b", devices=8, torch="2.8", libraries=Libraries())


@pytest.mark.parametrize(
    ("version", "chunks", "rank", "gib"),
    [
        ("2.15", 1, 0, 7.824),
        ("2.15", 1, 1, 4.964),
        ("2.15", 1, 7, 21.011),
        ("2.15", 2, 0, 6.802),
        ("2.8", 1, 0, 8.482),
        ("2.8", 1, 1, 5.729),
        ("2.8", 1, 7, 21.355),
        ("2.8", 2, 0, 7.709),
        ("2.8", 2, 1, 5.480),
    ],
)
def test_pipelines_of_two_years(version, chunks, rank, gib):
    """In use on the dry CUDA device, by PyTorch's own schedules, eager Llama 3 8B."""
    order = {"schedule": "interleaved", "num_chunks": chunks} if chunks > 1 else {}
    found = schedsim.cluster("llama3-8b", torch=version, **PIPELINE, **order)
    assert found.ranks[rank].peak_bytes / 2**30 == pytest.approx(gib, rel=0.023)


@pytest.mark.parametrize(
    ("model", "settings"),
    [("gpt2-xl", {}), ("gpt2-xl", {"state": "bf16"}), ("llama3-8b", {"state": "megatron"})],
)
def test_norms_that_are_one_kernel_in_every_version(model, settings):
    """With a shift, as layer norms of PyTorch, and those of Megatron."""
    new, old = (
        schedsim.cluster(model, devices=8, seq=1024, torch=version, **settings)
        for version in ("2.9", "2.8")
    )
    assert old.training.libraries == Libraries(handed_always=True, held_messages=True)
    assert (new.peak_bytes, new.step_s) == (old.peak_bytes, old.step_s)
    chosen = schedsim.clusters.choose(
        model, 10**12, devices=2, global_batch=2, seq=1024, torch="2.8", effort=1, **settings
    )
    assert not chosen.best.training.libraries.wide_norm


def test_messages_of_an_earlier_torch_are_of_no_other_state():
    """Nor of a step without a pipeline."""
    for settings in ({"state": "megatron", **PIPELINE}, {"devices": 8, "compiled": True}):
        new, old = (
            schedsim.cluster("llama3-8b", torch=version, **settings) for version in ("2.9", "2.15")
        )
        assert new.peak_bytes == old.peak_bytes
