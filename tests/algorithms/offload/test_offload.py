"""What `offload` promises: within the budget, never worse than without copies, bounds that hold."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from chains import INSTANCES, needs_instances, random_chain, random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_plans import check, some_budget, tiny_chain
from offload_steps import random_offloading
from schedsim.algorithms.chains.frontier import exact_frontier, frontier
from schedsim.algorithms.chains.persistent import Problem
from schedsim.algorithms.offload.offload import offload
from slow_offload import least_time_s
from tiers import examples

import schedsim
from schedsim import Chain, Schedule, simulate
from schedsim.errors import SchedsimError, UnsupportedError
from schedsim.files.document import from_dict, to_dict
from schedsim.plans.links import Link
from schedsim.plans.offloading import Offloading
from schedsim.plans.scope import COPIES
from schedsim.workloads import WorkloadOptions, build_workload


@pytest.mark.slow
@given(seed=st.integers(0, 10**12), num_stages=st.integers(1, 12))
@settings(max_examples=examples(40), deadline=None)
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
@settings(max_examples=examples(6), deadline=None)
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
        effort=0.1,
        num_threads=1,
    )
    check(graph, plan, offloading)
    for row in plan.candidates:
        if row.makespan_s is not None:
            assert plan.makespan_s <= row.makespan_s


@given(seed=st.integers(0, 10**12), num_stages=st.integers(1, 2))
@settings(max_examples=examples(25), deadline=None)
def test_nothing_beats_the_oracle_and_optimal_plans_meet_it(seed, num_stages):
    """Over all ways in time to keep, recompute and copy: bound <= optimum <= plan."""
    rng = np.random.default_rng(seed)
    chain = tiny_chain(rng, num_stages)
    offloading = random_offloading(rng, whole=True)
    budget = some_budget(rng, chain)
    budget = max(budget, Problem(chain).min_feasible_bytes - 1)
    best = least_time_s(chain.graph, budget, offloading, max_states=6000)
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
    if plan.proven_infeasible:
        assert best == float("inf")


@given(seed=st.integers(0, 10**12), num_ops=st.integers(2, 5))
@settings(max_examples=examples(12), deadline=None)
def test_nothing_beats_the_oracle_on_graphs(seed, num_ops):
    """So too on graphs whose first runs keep their order, with ops that run once, and results."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, num_ops)
    plain = [replace(op, in_place={}, saving_workspace_bytes=None) for op in graph.ops]
    graph = replace(graph, ops=tuple(plain))
    offloading = random_offloading(rng, whole=True)
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    budget = int(rng.uniform(0.6, 1.0) * peak)
    best = least_time_s(graph, budget, offloading, max_states=6000)
    if best is None:
        return
    plan = offload(
        graph,
        budget,
        link=(offloading.d2h, offloading.h2d),
        host_bytes=offloading.host_bytes,
        effort=0.1,
        num_threads=1,
    )
    check(graph, plan, offloading)
    assert plan.lower_bound_s <= best * (1 + 1e-9)
    if plan.feasible:
        assert best <= plan.makespan_s
    if plan.status == "optimal":
        assert plan.makespan_s == best
    if plan.proven_infeasible:
        assert best == float("inf")


def bundles(num: int = 6) -> Chain:
    """Equal stages with one byte passed on and three saved."""
    return Chain.from_arrays(
        "bundles",
        1,
        forward_s=[1] * num,
        backward_s=[2] * num,
        output_bytes=[1] * num,
        saved_bytes=[3] * num,
    )


def test_a_link_as_fast_as_the_forward_pass_needs_no_recomputation():
    """Three bytes a second carry what a second of forward makes; proven optimal, by the bound."""
    chain = bundles()
    plan = offload(chain, 13, link=Link(3), max_moves=4000, num_threads=1)
    assert plan.status == "optimal"
    assert plan.makespan_s == chain.store_all_s
    assert frontier(chain, 13).makespan_s > chain.store_all_s


def test_a_link_that_carries_nothing_changes_nothing():
    """The plan is that of recomputing alone, and so is its time."""
    chain = bundles()
    for budget in (11, 13, 16):
        plan = offload(chain, budget, link=Link(1e-9), max_moves=500, num_threads=1)
        assert plan.makespan_s == frontier(chain, budget).makespan_s
        assert plan.simulate(chain).num_copies == 0


def test_no_host_memory_is_no_link():
    """So too where the host has room for nothing; and a little room is kept to."""
    chain = bundles()
    without = frontier(chain, 13).makespan_s
    none = offload(chain, 13, link=Link(3), host_bytes=0, max_moves=500, num_threads=1)
    assert none.makespan_s == without
    some = offload(chain, 13, link=Link(3), host_bytes=3, max_moves=2000, num_threads=1)
    assert some.simulate(chain).peak_by_pool.get("host", 0) <= 3
    assert some.makespan_s <= without


def test_latency_and_directions_count():
    """Slow back, or a long latency: no better than fast both ways."""
    chain = bundles()
    times = [
        offload(chain, 13, link=link, max_moves=3000, num_threads=1).makespan_s
        for link in (Link(3), (Link(3), Link(0.5)), Link(3, 4.0))
    ]
    assert times[0] < times[1]
    assert times[0] < times[2]


@pytest.mark.slow
def test_below_what_recomputing_can_do():
    """Copies fit where no persistent schedule does; else the least budget found is one."""
    chain = bundles(8)
    least = Problem(chain).min_feasible_bytes
    tight = offload(chain, least - 1, link=Link(3), max_moves=3000, num_threads=1)
    if not tight.feasible:
        assert tight.min_feasible_bytes >= least - 1
    hopeless = offload(chain, 3, link=Link(3), max_moves=500, num_threads=1)
    assert not hopeless.feasible
    assert hopeless.min_feasible_bytes > 3
    again = offload(chain, hopeless.min_feasible_bytes, link=Link(3), max_moves=3000, num_threads=1)
    assert again.feasible


def test_runs_with_the_same_seed_are_the_same():
    """Where moves are counted, the seed decides."""
    rng = np.random.default_rng(3)
    chain = random_chain(rng, 12)
    budget = (
        Problem(chain).min_feasible_bytes + simulate(chain, Schedule.store_all(chain)).peak_bytes
    ) // 2
    one, two = (
        offload(chain, budget, link=Link(4), max_moves=2000, num_threads=1, seed=5)
        for _ in range(2)
    )
    assert one.schedule == two.schedule


def test_plans_survive_json_and_replay():
    """The file holds the link; the replay on the original workload is the plan's."""
    chain = bundles()
    plan = schedsim.plan(chain, 13, link=(Link(3, 0.5), Link(2)), host_bytes=40, time_limit_s=0.5)
    back = from_dict(json.loads(json.dumps(to_dict(plan))))
    assert to_dict(back) == to_dict(plan)
    assert back.setting.copies == Offloading(Link(3, 0.5), Link(2), 40)
    told = back.simulate(chain)
    assert (told.makespan_s, told.peak_bytes) == (plan.makespan_s, plan.peak_bytes)


def test_calls_take_a_link():
    """`plan` and `compare`; planners that offload say so where there is none."""
    chain = bundles()
    assert schedsim.plan(chain, 13, link="3B/s", time_limit_s=0.5).makespan_s == chain.store_all_s
    rows = schedsim.compare(chain, 13, ["frontier", "offload"], link="3B/s", host_bytes="1kB")
    assert rows[1].makespan_s < rows[0].makespan_s
    assert "offload" not in [row.planner for row in schedsim.compare(chain, 13)]
    with pytest.raises(UnsupportedError):
        schedsim.plan(chain, 13, "offload")
    with pytest.raises(SchedsimError):
        schedsim.plan(chain, 13, host_bytes=10)
    with pytest.raises(SchedsimError):
        schedsim.plan(chain, 13, link="3B/s", order="free")


def claims(chain: Chain, link: Link, factors: tuple[int, ...]) -> list[tuple[float, float, str]]:
    """(overhead without copies, with them, scope of the bound) at fractions of store-all."""
    peak = simulate(chain, Schedule.store_all(chain)).peak_bytes
    found = []
    for factor in factors:
        without = frontier(chain, peak // factor)
        plan = offload(chain, peak // factor, link=link, max_moves=8_000, time_limit_s=60)
        assert plan.simulate(chain).peak_bytes <= peak // factor
        found.append((without.overhead, plan.overhead, plan.bound_scope))
    return found


@pytest.mark.slow
def test_a_convolutional_chain_as_the_field_reports():
    """At most two thirds of the overhead of recomputing alone, and 4 to 6 times less memory at
    less than 20 %: the claims of Beaumont et al. 2021, on a ResNet-152 over PCIe 4.0."""
    options = WorkloadOptions(preset="resnet-152", batch=64, efficiency=0.5)
    chain = build_workload(options).workload
    for without, both, scope in claims(chain, Offloading.over("pcie4").d2h, (4, 6)):
        assert both <= 2 / 3 * without
        assert both < 0.2
        assert scope == COPIES


@pytest.mark.slow
@needs_instances
def test_a_chain_with_known_answers():
    """The same where the optimum without copies is known from elsewhere."""
    chain = schedsim.load(INSTANCES / "chain" / "resnet_L50.json")
    saved = sum(stage.saved_bytes for stage in chain.stages)
    link = Link(0.5 * saved / sum(stage.forward_s for stage in chain.stages))
    curve = exact_frontier(chain)
    truth = json.loads((INSTANCES / "chain" / "truth.json").read_text())["resnet_L50"]
    assert curve.budget_bytes.tolist() == [point[0] for point in truth["persistent_frontier"]]
    for without, both, _ in claims(chain, link, (4, 5)):
        assert both <= 2 / 3 * without
        assert both < 0.2
