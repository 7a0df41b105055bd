"""The baseline that recomputes nothing: optimal where it fits, its own peak where it does not."""

from __future__ import annotations

import pytest

import schedsim
from schedsim import Schedule, simulate
from schedsim.api import try_plan

CHAIN = schedsim.Chain.from_arrays(
    "four", 4, forward_s=[1] * 4, backward_s=[2] * 4, output_bytes=[4] * 4, saved_bytes=[20] * 4
)


@pytest.mark.parametrize("workload", [CHAIN, CHAIN.graph], ids=["chain", "graph"])
def test_it_fits_from_its_own_peak_on(workload):
    """One byte less is refused, with that peak as the budget that would do."""
    peak = simulate(workload, Schedule.store_all(workload)).peak_bytes
    plan = try_plan(workload, peak, "store_all")
    assert (plan.status, plan.makespan_s, plan.peak_bytes) == ("optimal", 12.0, peak)
    refused = try_plan(workload, peak - 1, "store_all")
    assert (refused.status, refused.min_feasible_bytes) == ("infeasible", peak)
