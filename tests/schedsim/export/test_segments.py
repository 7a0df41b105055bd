"""Checkpointed segments of a chain: what checkpoint wrappers around modules can express."""

from __future__ import annotations

import numpy as np
from chains import random_chain
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

import schedsim
from schedsim import simulate
from schedsim.export import export
from schedsim.export.segments import segment_schedule


def planned(workload, share: float):
    """The plan at a share of the way from little memory to that of store-all."""
    peak = simulate(workload, schedsim.Schedule.store_all(workload)).peak_bytes
    little = 0.45 * peak
    if workload.kind == "chain":
        little = min(point.budget_bytes for point in schedsim.pareto(workload).points)
    return schedsim.plan(workload, int(little + share * (peak - little)), time_limit_s=0.3)


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 10**6))
def test_segments_are_the_best_of_all_where_there_are_few(seed):
    """Never worse than what one flip away would be, and never over what store-all or all would."""
    rng = np.random.default_rng(seed)
    chain = random_chain(rng, int(rng.integers(2, 5)))
    plan = planned(chain, 1.0) if rng.random() < 0.2 else None
    if plan is None:
        budgets = [point.budget_bytes for point in schedsim.pareto(chain).points]
        plan = schedsim.plan(chain, int(rng.integers(min(budgets), max(budgets) + 1)))
    exported = export(chain, plan, "torch")
    times = {}
    for count in range(2**chain.num_stages):  # all sets of single stages
        chosen = tuple((i, i + 1) for i in range(chain.num_stages) if count >> i & 1)
        found = simulate(chain, segment_schedule(chain, chosen))
        times[chosen] = (found.peak_bytes > plan.budget_bytes, found.makespan_s)
    periodic = simulate(chain, segment_schedule(chain, ((0, chain.num_stages),)))
    if exported.fits:
        assert exported.regret >= -1e-9 or plan.status != "optimal"
    else:
        assert all(over for over, _ in times.values()) or periodic.peak_bytes > plan.budget_bytes
