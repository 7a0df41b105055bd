"""Workloads that are too large to make are refused before anything is made."""

from __future__ import annotations

import pytest
from schedsim.algorithms.chains.revolve import MOST_RUNS, _few_slots, num_forwards

from schedsim import Chain, SchedsimError
from schedsim.workloads import WorkloadOptions, build_workload


@pytest.mark.parametrize(
    "options",
    [
        {"layers": 999_999_999},
        {"layers": 1_000_000},
        {"layers": 10_001, "granularity": "op"},
        {"layers": 999_999_999, "preset": "gpt2"},
        {"layers": 999_999_999, "synthetic": "uniform"},
    ],
)
def test_too_many_layers_are_refused_at_once(options):
    """One line, with the number and the most."""
    with pytest.raises(SchedsimError, match=r"is more than 1\d+,000"):
        build_workload(WorkloadOptions(**options))


def test_long_chains_are_not_run_in_one_slot():
    """One slot of 20,000 stages would make 2 * 10^8 runs; of 1,000 it is still tried."""
    assert min(_few_slots(1_000, None)) == 1
    few = _few_slots(20_000, None)
    assert few
    assert all(num_forwards(20_000, slots) + 20_000 <= MOST_RUNS for slots in few)
    assert isinstance(build_workload(WorkloadOptions(layers=3)).workload, Chain)
