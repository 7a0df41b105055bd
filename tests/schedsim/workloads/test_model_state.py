"""Model state by ZeRO's accounting."""

from __future__ import annotations

import pytest

from schedsim import SchedsimError
from schedsim.workloads import STATE_RULES, WorkloadOptions, build_workload, model_state_bytes


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_figure_1_of_zero(stage, gigabytes):
    """7.5 B parameters on 64 ranks: 120, 31.4, 16.6 and 1.9 GB."""
    size = model_state_bytes(7_500_000_000, zero_stage=stage, data_parallel=64)
    assert round(size / 1e9, 1) == gigabytes


def test_sixteen_bytes_per_parameter():
    """Mixed-precision Adam: 2 + 2 + 12; half of it on two tensor-parallel ranks."""
    assert model_state_bytes(1_500_000_000) == 24 * 10**9
    assert model_state_bytes(1_500_000_000, tensor_parallel=2) == 12 * 10**9


def test_bytes_per_parameter():
    """fp32: 4 + 4 and 4 per moment; mixed: 2 + 2, master copy of 4 and 4 per moment; frozen: 2."""
    assert {name: model_state_bytes(1000, optimizer=name) / 1000 for name in STATE_RULES} == {
        "adam-mixed": 16,
        "adam": 16,
        "sgd-momentum-mixed": 12,
        "sgd-momentum": 12,
        "sgd": 8,
        "none": 2,
    }


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_sharding_never_loses_a_byte(stage):
    """Shares are rounded up: all ranks together hold at least what one rank would alone."""
    whole = model_state_bytes(1009)
    shared = model_state_bytes(1009, zero_stage=stage, data_parallel=8, tensor_parallel=2)
    assert whole <= 16 * shared
    assert shared <= model_state_bytes(1009, tensor_parallel=2)


@pytest.mark.parametrize(("preset", "says"), [("gpt2", "mixed-precision"), ("vit-b16", "fp32")])
def test_the_optimizer_follows_the_number_format(preset, says):
    """Mixed precision for 2-byte activations, fp32 for 4-byte ones, unless one is given."""
    built = build_workload(WorkloadOptions(preset=preset, static="auto"))
    assert f"{says} Adam, 16 bytes/parameter" in built.assumptions[1]


def test_sharding_is_said():
    """Tensor-parallel degree, stage and ranks stand in the line on model state."""
    options = WorkloadOptions(
        preset="llama2-7b", static="auto", tensor_parallel=2, zero_stage=3, data_parallel=4
    )
    built = build_workload(options)
    assert built.workload.static_bytes == 16 * 6_738_415_616 // 8
    assert built.assumptions[1].endswith("tensor parallel 2, ZeRO 3 over 4 ranks")


def test_static_auto_counts_the_model():
    """GPT-2: 124,439,808 parameters times 16."""
    built = build_workload(WorkloadOptions(preset="gpt2", static="auto"))
    assert built.workload.static_bytes == 16 * 124_439_808
    assert "124,439,808 parameters" in built.assumptions[1]


@pytest.mark.parametrize(
    "bad", [{"optimizer": "adamm"}, {"zero_stage": 4}, {"data_parallel": 0}, {"tensor_parallel": 0}]
)
def test_unknown_rules_are_refused(bad):
    """With the option's name."""
    with pytest.raises(SchedsimError, match="--"):
        model_state_bytes(10, **bad)
