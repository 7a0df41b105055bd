"""`poet`: the programme's answers run in the engine, and no less than the optimum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from chains import random_chain
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_plans import check, some_budget, tiny_chain
from offload_steps import random_offloading
from schedsim.algorithms.chains.persistent import Problem
from schedsim.algorithms.graphs._milp import Milp
from schedsim.algorithms.offload import poet as poet_module
from schedsim.algorithms.offload.poet import poet
from slow_offload import least_time_s
from tiers import examples

from schedsim import Chain, Schedule, simulate
from schedsim.errors import PlannerLimitError
from schedsim.plans.links import Link
from schedsim.plans.offloading import Offloading
from schedsim.workloads import WorkloadOptions, build_workload
from schedsim.workloads.synthetic import heavy_tailed
from schedsim.workloads.synthetic_graphs import layered


@given(seed=st.integers(0, 10**12), num_stages=st.integers(1, 2), alone=st.booleans())
@settings(max_examples=examples(20), deadline=None)
def test_answers_are_no_less_than_the_optimum(seed, num_stages, alone):
    """Over all ways in time: bound <= optimum <= plan, within both memories."""
    rng = np.random.default_rng(seed)
    chain = tiny_chain(rng, num_stages)
    offloading = random_offloading(rng, whole=True)
    budget = max(some_budget(rng, chain), Problem(chain).min_feasible_bytes - 1)
    best = least_time_s(chain.graph, budget, offloading, max_states=6000)
    if best is None:
        return
    plan = poet(
        chain.graph,
        budget,
        link=(offloading.d2h, offloading.h2d),
        host_bytes=offloading.host_bytes,
        time_limit_s=5,
        start=not alone,
        polish=not alone,
    )
    check(chain.graph, plan, offloading)
    assert plan.lower_bound_s <= best * (1 + 1e-9)
    if plan.feasible:
        assert best <= plan.makespan_s
    if plan.status == "optimal":
        assert plan.makespan_s == best


@pytest.mark.slow
@given(seed=st.integers(0, 10**12), num_stages=st.integers(3, 4))
@settings(max_examples=examples(5), deadline=None)
def test_answers_run_in_the_engine(seed, num_stages):
    """The sequence of an answer is legal and within both memories."""
    rng = np.random.default_rng(seed)
    chain = random_chain(rng, num_stages)
    offloading = random_offloading(rng)
    plan = poet(
        chain.graph,
        some_budget(rng, chain),
        link=(offloading.d2h, offloading.h2d),
        host_bytes=offloading.host_bytes,
        time_limit_s=2,
    )
    check(chain.graph, plan, offloading)


def test_a_copy_that_lasts_several_stages_hides_behind_them():
    """By hand: six seconds out beside the first three forwards, and back beside the backwards.

    Eight bytes of input must be away at the loss, whose workspace is as large; they fit again
    beside the first backward (a1..a4, d4, d3).
    """
    num = 4
    chain = Chain.from_arrays(
        "big first",
        8,
        forward_s=[2] * num,
        backward_s=[2] * num,
        output_bytes=[2] * num,
        saved_bytes=[2] * num,
    )
    chain = replace(chain, loss_workspace_bytes=8)
    plan = poet(chain.graph, 20, link=Link(8 / 6), time_limit_s=20, start=False, polish=False)
    assert plan.makespan_s == chain.store_all_s
    assert plan.status == "optimal"
    told = plan.simulate(chain.graph)
    assert told.num_copies == 2
    assert told.busy_s["d2h"] == told.busy_s["h2d"] == 6.0


def test_large_graphs_are_refused():
    """What the solver cannot do is said before it tries."""
    graph = build_workload(WorkloadOptions(layers=96)).workload.graph
    with pytest.raises(PlannerLimitError) as caught:
        poet(graph, 10**10, link="pcie4")
    assert "offload" in caught.value.hint


def test_no_programme_is_begun_whose_first_node_takes_more_than_the_effort(monkeypatch):
    """HiGHS finishes its first node: on 60 ops it took minutes of an effort of 0.03."""
    graph = layered(24, 1)
    budget = int(0.8 * simulate(graph, Schedule.store_all(graph)).peak_bytes)
    solve = Milp.solve

    def of_the_bound(milp, effort, integral=True, nodes=None):
        # The programmes of single cuts are small, and those of several say what nodes take.
        assert not integral or nodes or milp.num_nonzeros < 5_000, "begun"
        return solve(milp, effort, integral=integral, nodes=nodes)

    monkeypatch.setattr(Milp, "solve", of_the_bound)
    plan = poet(graph, budget, link=Link(1e9), effort=0.01, start=False)
    assert plan.search.ended_by == "work"
    assert plan.options["solved"] is False
    monkeypatch.setattr(poet_module, "_CLOCK_LOOKS", 0.0)
    plan = poet(graph, budget, link=Link(1e9), time_limit_s=5, start=False)
    assert plan.search.ended_by == "clock"


@pytest.mark.parametrize(
    ("num_stages", "seed", "budget", "rate", "effort"),
    [
        (7, 1, 67_716_205, 1.0, 0.8),
        pytest.param(29, 2, 397_900_322, 0.3, 3.0, marks=pytest.mark.slow),
    ],
)
def test_uneven_chains_are_proven_optimal(num_stages, seed, budget, rate, effort):
    """Steps of 15 and 59 ops, times in floats: the start meets what one cut says."""
    chain = heavy_tailed(num_stages, seed)
    peak = simulate(chain, Schedule.store_all(chain)).peak_bytes
    link = Link(rate * peak / (chain.store_all_s / 3))
    plan = poet(chain.graph, budget, link=link, effort=effort)
    check(chain.graph, plan, Offloading(link, link))
    assert plan.status == "optimal"
    assert plan.makespan_s > chain.store_all_s * 1.006
