"""The planner that most users want: exact where it can be, proven where it cannot."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from chains import random_chain
from fixed_order import fixed_order_optimum
from schedsim.algorithms.auto import auto
from schedsim.algorithms.chains.chain_optimum import chain_optimum
from schedsim.algorithms.chains.frontier import frontier
from schedsim.algorithms.exhaustive import exhaustive, plan_within_states
from tiny_families import tiny_graph

from schedsim import Chain, Schedule, simulate
from schedsim.plans.effort import Effort
from schedsim.plans.plan import make_plan
from schedsim.plans.scope import ANY_SCHEDULE
from schedsim.workloads.synthetic import uniform
from schedsim.workloads.synthetic_graphs import layered, tree


def test_auto_prefers_proofs_and_lists_what_it_tried():
    """Store-all where it fits, else the frontier, else rotor."""
    chain = random_chain(np.random.default_rng(3), 10)
    store_all = simulate(chain, Schedule.store_all(chain)).peak_bytes
    assert auto(chain, store_all).found_by == "store_all"
    plan = auto(chain, store_all - 1)
    assert (plan.status, plan.found_by) == ("optimal", "frontier")
    assert [row.planner for row in plan.candidates] == ["store_all", "frontier", "chain_optimum"]


def test_a_chain_gets_the_better_of_persistent_and_of_any_schedule():
    """Without an effort, too; where no schedule is better, what is said is said as before."""
    unit = Chain.from_arrays(
        "four", 1, forward_s=[1] * 4, backward_s=[1] * 4, output_bytes=[1] * 4, saved_bytes=[1] * 4
    )
    better = auto(unit, 5)
    assert frontier(unit, 5).makespan_s == 13
    assert (better.makespan_s, better.status, better.bound_scope) == (11, "optimal", ANY_SCHEDULE)
    even = uniform(8)
    budget = simulate(even, Schedule.store_all(even)).peak_bytes - 1
    same, persistent = auto(even, budget), frontier(even, budget)
    assert (same.found_by, same.bound_scope) == ("frontier", persistent.bound_scope)
    assert (same.makespan_s, same.search.ended_by) == (persistent.makespan_s, "itself")
    beside = next(row for row in same.candidates if row.planner == "chain_optimum")
    assert (beside.lower_bound_s, beside.bound_scope) == (same.makespan_s, ANY_SCHEDULE)


@pytest.mark.parametrize("seed", range(12))
def test_between_the_optimum_and_the_best_persistent_schedule(seed):
    """And its candidates' bounds over any schedule lie below the optimum."""
    rng = np.random.default_rng(seed)
    chain = random_chain(rng, 4)
    peak = simulate(chain, Schedule.store_all(chain)).peak_bytes
    for budget in (peak - 1, int(0.9 * peak), int(0.8 * peak)):
        persistent = frontier(chain, budget)
        if not persistent.feasible:
            continue
        plan, best = auto(chain, budget), exhaustive(chain, budget)
        assert best.makespan_s <= plan.makespan_s <= persistent.makespan_s
        assert simulate(chain, plan.schedule).peak_bytes <= budget
        for row in plan.candidates:
            if row.bound_scope == ANY_SCHEDULE:
                assert row.lower_bound_s <= best.makespan_s


def test_no_backward_of_a_chain_runs_twice(monkeypatch):
    """A model's backward adds its gradients: the persistent schedule is taken instead."""
    chain = Chain.from_arrays(
        "four", 1, forward_s=[1] * 4, backward_s=[1] * 4, output_bytes=[1] * 4, saved_bytes=[1] * 4
    )
    persistent = frontier(chain, 6)
    names = persistent.schedule.names
    again = names.index("B2")
    twice = Schedule.from_names([*names[: again + 1], *names[again:]])

    def repeating(graph, budget_bytes, **options):
        return make_plan(graph, budget_bytes, twice, planner="local_search")

    module = import_module("schedsim.algorithms.auto")
    monkeypatch.setattr(module, "local_search", repeating)
    monkeypatch.setattr(module, "MOST_SWEPT", 0)  # else the exact search has the last word
    options = {"seed": 0, "gap": 0.0}
    known = persistent.schedule
    (plan,) = module._over_all_schedules(chain, chain, 6, known, Effort(1.0), options)
    assert plan.schedule.names.count("B2") == 1
    assert plan.makespan_s == persistent.makespan_s


def test_no_backward_runs_twice_where_no_persistent_schedule_fits():
    """Gradients made again later would need less memory than any that runs backward once."""
    room = (7200, 7200, 4800, 4800, 2400, 2400, 0, 0)
    chain = Chain.from_arrays(
        "linear and relu",
        12288,
        forward_s=[1] * 8,
        backward_s=[2] * 8,
        output_bytes=[6144] * 8,
        saved_bytes=[6144] * 8,
        forward_workspace_bytes=room,
        backward_workspace_bytes=(7200, 7200, 1056, 4800, -1344, 2400, -3744, 0),
        static_bytes=28840,
    )
    made = (2400, 0) * 4
    chain = replace(chain, loss_s=1.0, loss_workspace_bytes=4, gradient_bytes=(*made, 0))
    least = frontier(chain, 1).min_feasible_bytes
    for budget in (least - 4500, least - 900):
        plan = auto(chain, budget, effort=0.1)
        names = plan.schedule.names if plan.feasible else ()
        assert all(names.count(name) == 1 for name in names if name[0] != "F")
    assert auto(chain, least, effort=0.1).feasible


@pytest.mark.parametrize("as_graph", [False, True])
def test_chains_of_few_stages_get_the_best_of_any_schedule(as_graph):
    """Equal stages within a tenth more than the least: proven, as a chain and as its graph."""
    chain = uniform(40)
    plan = auto(chain.graph if as_graph else chain, 13_200_000, effort=2.0)
    assert (plan.status, plan.bound_scope) == ("optimal", ANY_SCHEDULE)
    assert plan.found_by == "chain_optimum"
    assert plan.makespan_s == pytest.approx(chain_optimum(chain, 13_200_000).makespan_s)


@pytest.mark.slow
def test_what_the_exact_search_leaves_open_has_its_bound():
    """The annealing goes on from there, and both bounds are looked at."""
    chain = uniform(60)
    plan = auto(chain.graph, 24_000_000, effort=0.5)
    assert plan.status == "feasible"
    assert {row.planner for row in plan.candidates} >= {"chain_optimum", "local_search"}
    assert plan.lower_bound_s / chain.store_all_s - 1 > 0.54  # cuts and the search prove far less


def test_a_stage_that_must_be_kept_is_left_to_the_others():
    """The exact search knows of no rules."""
    chain = uniform(12)
    ruled = replace(chain, stages=(replace(chain.stages[0], rule="keep"), *chain.stages[1:]))
    plan = auto(ruled, 60_000_000, effort=0.5)
    assert plan.schedule.names.count("F0") == 1
    assert "chain_optimum" not in {row.planner for row in plan.candidates}


def test_where_nothing_is_found_the_best_proof_is_told():
    """No time for a search: its knapsack proves more than store-all, and nothing fits yet."""
    graph = layered(300)
    budget = simulate(graph, Schedule.store_all(graph)).peak_bytes // 2
    plan = auto(graph, budget, time_limit_s=0.0)
    assert not plan.feasible
    proven = [candidate.lower_bound_s for candidate in plan.candidates]
    assert plan.lower_bound_s == max(proven) > graph.store_all_s
    assert plan.search.bound_by.startswith("knapsack")


@pytest.mark.parametrize("seed", range(24))
def test_a_small_graph_is_solved_by_little_effort(seed):
    """Within each budget: the optimum, or the least budget, at which the same call finds a plan."""
    graph = tiny_graph(seed)
    top = simulate(graph, Schedule.store_all(graph)).peak_bytes
    for budget in {top - 1, top * 2 // 3, top // 2, 1}:
        plan = auto(graph, budget, effort=0.01)
        best_s = fixed_order_optimum(graph, budget)
        if plan.schedule is not None:
            assert (plan.status, plan.makespan_s) == ("optimal", best_s)
            continue
        least = plan.min_feasible_bytes
        assert (best_s, plan.least.proven) == (np.inf, True)
        assert auto(graph, least, effort=0.01).status == "optimal"
        assert auto(graph, least - 1, effort=0.01).proven_infeasible


def test_states_that_do_not_suffice_leave_what_fits():
    """The annealing then starts from it; the effort pays for the states."""
    graph = tree(30)  # of 21 ops
    budget = simulate(graph, Schedule.store_all(graph)).peak_bytes * 3 // 5
    found = {}
    for most in (0, 1000, 5000):
        effort = Effort(50.0)
        found[most] = plan_within_states(graph, budget, "fixed", effort, most)
        assert (effort.spent > 0) == (most > 0)
    assert found[0] is None
    assert isinstance(found[1000], Schedule)
    assert simulate(graph, found[1000]).peak_bytes <= budget
    assert found[5000].status == "optimal"
