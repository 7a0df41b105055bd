"""Chains, budgets and checks for the tests of planners that offload."""

from __future__ import annotations

from schedsim.algorithms.chains.persistent import Problem

from schedsim import Chain, Schedule, simulate


def check(workload, plan, offloading) -> None:
    """Check what holds for every plan: it runs in the engine, within both memories."""
    if not plan.feasible:
        return
    told = plan.simulate(workload)
    assert told.peak_bytes == plan.peak_bytes <= plan.budget_bytes
    assert told.makespan_s == plan.makespan_s
    if offloading.host_bytes is not None:
        assert told.peak_by_pool.get("host", 0) <= offloading.host_bytes
    assert plan.lower_bound_s <= plan.makespan_s


def some_budget(rng, workload) -> int:
    """Between a little below what recomputing can do and the store-all peak."""
    most = simulate(workload, Schedule.store_all(workload)).peak_bytes
    least = int(0.4 * most)
    if isinstance(workload, Chain):
        least = max(0, Problem(workload).min_feasible_bytes - 5)
    return int(rng.integers(least, most + 2))


def tiny_chain(rng, num_stages: int) -> Chain:
    """Small whole sizes and times, for an oracle that walks through all states."""
    output = rng.integers(1, 4, num_stages)
    return Chain.from_arrays(
        "tiny",
        int(rng.integers(0, 3)),
        forward_s=rng.integers(1, 4, num_stages),
        backward_s=rng.integers(1, 5, num_stages),
        output_bytes=output,
        saved_bytes=output + rng.integers(0, 4, num_stages),
        forward_workspace_bytes=rng.integers(0, 2, num_stages),
        backward_workspace_bytes=rng.integers(0, 2, num_stages),
    )
