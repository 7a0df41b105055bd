"""The planner that most users want: exact where it can be, proven where it cannot."""

from __future__ import annotations

from importlib import import_module

import numpy as np
from chains import random_chain
from schedsim.algorithms.auto import auto
from schedsim.algorithms.chains.frontier import frontier

from schedsim import Chain, Schedule, simulate
from schedsim.plans.effort import Effort
from schedsim.plans.plan import make_plan


def test_auto_prefers_proofs_and_lists_what_it_tried():
    """Store-all where it fits, else the frontier, else rotor."""
    chain = random_chain(np.random.default_rng(3), 10)
    store_all = simulate(chain, Schedule.store_all(chain)).peak_bytes
    assert auto(chain, store_all).found_by == "store_all"
    plan = auto(chain, store_all - 1)
    assert (plan.status, plan.found_by) == ("optimal", "frontier")
    assert [row.planner for row in plan.candidates] == ["store_all", "frontier"]


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
    plan = module._beyond_persistent(chain, persistent, Effort(1.0), {"seed": 0, "gap": 0.0})
    assert plan.schedule.names.count("B2") == 1
    assert plan.makespan_s == persistent.makespan_s
