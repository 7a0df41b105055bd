"""Model state by ZeRO's accounting."""

from __future__ import annotations

import pytest

from schedsim import SchedsimError
from schedsim.workloads import WorkloadOptions, build_workload, model_state_bytes


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_figure_1_of_zero(stage, gigabytes):
    """7.5 B parameters on 64 ranks: 120, 31.4, 16.6 and 1.9 GB."""
    size = model_state_bytes(7_500_000_000, zero_stage=stage, data_parallel=64)
    assert round(size / 1e9, 1) == gigabytes


def test_sixteen_bytes_per_parameter():
    """Mixed-precision Adam: 2 + 2 + 12; half of it on two tensor-parallel ranks."""
    assert model_state_bytes(1_500_000_000) == 24 * 10**9
    assert model_state_bytes(1_500_000_000, tensor_parallel=2) == 12 * 10**9


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
