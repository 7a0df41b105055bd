"""What `offload` promises: within the budget, never worse than without copies, bounds that hold."""

from __future__ import annotations

import numpy as np
from chains import random_chain, random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_steps import random_offloading
from schedsim.algorithms.chains.frontier import frontier
from schedsim.algorithms.chains.persistent import Problem
from schedsim.algorithms.offload.offload import offload
from slow_offload import least_time_s

from schedsim import Chain, Schedule, simulate
from schedsim.offloading import replay


def check(workload, plan, offloading) -> None:
    """What holds of every plan: it runs in the engine, within both memories."""
    if not plan.feasible:
        return
    told = replay(workload, plan)
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


@given(seed=st.integers(0, 10**12), num_stages=st.integers(1, 12))
@settings(max_examples=120, deadline=None)
def test_chains_are_never_worse_than_without_copies(seed, num_stages):
    """The optimal persistent schedule without copies is met or beaten, within the budget."""
    rng = np.random.default_rng(seed)
    chain = random_chain(rng, num_stages)
    offloading = random_offloading(rng)
    budget = some_budget(rng, chain)
    plan = offload(
        chain,
        budget,
        link=(offloading.d2h, offloading.h2d),
        host_bytes=offloading.host_bytes,
        max_moves=600,
        num_threads=1,
    )
    check(chain, plan, offloading)
    without = frontier(chain, budget)
    if without.feasible:
        assert plan.feasible
        assert plan.makespan_s <= without.makespan_s * (1 + 1e-12)
    if not plan.feasible:
        assert plan.min_feasible_bytes > budget


@given(seed=st.integers(0, 10**12), num_ops=st.integers(2, 12))
@settings(max_examples=15, deadline=None)
def test_graphs_are_never_worse_than_without_copies(seed, num_ops):
    """So too on graphs, against the plan without copies that it reports."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, num_ops)
    offloading = random_offloading(rng)
    plan = offload(
        graph,
        some_budget(rng, graph),
        link=(offloading.d2h, offloading.h2d),
        host_bytes=offloading.host_bytes,
        time_limit_s=0.4,
        num_threads=1,
    )
    check(graph, plan, offloading)
    for row in plan.candidates:
        if row.makespan_s is not None:
            assert plan.makespan_s <= row.makespan_s


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


@given(seed=st.integers(0, 10**12), num_stages=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_nothing_beats_the_oracle_and_optimal_plans_meet_it(seed, num_stages):
    """Over all ways in time to keep, recompute and copy: bound <= optimum <= plan."""
    rng = np.random.default_rng(seed)
    chain = tiny_chain(rng, num_stages)
    offloading = random_offloading(rng, whole=True)
    budget = some_budget(rng, chain)
    budget = max(budget, Problem(chain).min_feasible_bytes - 1)
    best = least_time_s(chain.graph, budget, offloading)
    if best is None:
        return
    plan = offload(
        chain,
        budget,
        link=(offloading.d2h, offloading.h2d),
        host_bytes=offloading.host_bytes,
        max_moves=4000,
        num_threads=1,
    )
    check(chain, plan, offloading)
    assert plan.lower_bound_s <= best * (1 + 1e-9)
    if plan.feasible:
        assert best <= plan.makespan_s
    if plan.status == "optimal":
        assert plan.makespan_s == best
    if "proven" in str(plan.options.get("infeasible")):
        assert best == float("inf")
