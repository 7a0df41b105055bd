"""Graphs of which something must be recomputed: every planner beside brute force."""

from __future__ import annotations

import random

import numpy as np
import pytest
from schedsim.algorithms import PLANNERS
from schedsim.algorithms.graphs.forced_recomputation import doubled, with_recomputed
from schedsim.algorithms.store_all import store_all

import schedsim
from schedsim.api import try_plan
from schedsim.dataflow.recomputation_rules import RecomputationRules, check_evicted
from schedsim.errors import MissingDependencyError, PlannerLimitError, UnsupportedError
from schedsim.plans.scope import ANY_SCHEDULE

NAMES = sorted(
    name
    for name, info in PLANNERS.items()
    if "graph" in info.kinds and not info.needs_link and name != "exhaustive"
)


def some_step(rng: random.Random) -> schedsim.Graph:
    """Forward ops that read some before them, a loss, and a backward of each."""
    num = rng.randint(2, 4)
    ops: list[schedsim.Op] = []
    for i in range(num):
        made = [f"x{k}" for k in range(i)]
        reads = tuple(rng.sample(made, min(i, rng.randint(min(i, 1), 2))))
        op = schedsim.Op(f"m{i % 2}.f{i}", "forward", rng.randint(1, 4), rng.randint(0, 2), reads)
        ops.append(
            schedsim.Op(
                op.name,
                op.phase,
                op.time_s,
                op.workspace_bytes,
                reads,
                {f"x{i}": rng.randint(1, 4)},
            )
        )
    ops.append(schedsim.Op("loss", "loss", 1, 0, (f"x{num - 1}",), {"d": 1}))
    gradient = "d"
    for i in reversed(range(num)):
        reads = [gradient] + [f"x{i}"] * (rng.random() < 0.8)
        reads += [tensor for tensor in ops[i].reads if rng.random() < 0.6]
        own = tuple(dict.fromkeys(reads))
        ops.append(
            schedsim.Op(
                f"grad.{ops[i].name}",
                "backward",
                rng.randint(1, 4),
                0,
                own,
                {f"d{i}": rng.randint(1, 3)},
            )
        )
        gradient = f"d{i}"
    return schedsim.Graph("some", tuple(ops))


@pytest.mark.parametrize("seed", range(8))
def test_every_planner_beside_brute_force(seed):
    """None is quicker, none over budget, none breaks a rule, and no bound is above the optimum."""
    rng = random.Random(seed)
    graph = some_step(rng)
    forward = [op.name for op in graph.ops if op.phase == "forward"]
    keep = [name for name in forward if rng.random() < 0.25]
    recompute = [name for name in forward if name not in keep and rng.random() < 0.4]
    asked = {"keep": keep, "recompute": recompute}
    ruled = RecomputationRules.of(keep, recompute).of_workload(graph)
    roomy = try_plan(graph, 10**6, "exhaustive", **asked)
    least = try_plan(graph, 1, "exhaustive", **asked).min_feasible_bytes
    for budget in {least, (least + roomy.peak_bytes) // 2}:
        best = try_plan(graph, budget, "exhaustive", **asked)
        assert best.status == "optimal"
        for name in NAMES:
            more = {"effort": 0.05} if "effort" in PLANNERS[name].options() else {}
            try:
                plan = try_plan(graph, budget, name, **asked, **more)
            except (UnsupportedError, PlannerLimitError, MissingDependencyError):
                continue
            if plan.bound_scope.order == "any":
                assert plan.lower_bound_s <= best.makespan_s * (1 + 1e-9)
            if plan.schedule is None:
                continue
            check_evicted(ruled, plan.schedule)
            counts = np.bincount(plan.schedule.bind(ruled), minlength=ruled.num_ops)
            assert all(count == 1 for op, count in zip(ruled.ops, counts, strict=True) if op.once)
            assert plan.simulate(graph).peak_bytes <= budget
            assert plan.makespan_s >= best.makespan_s * (1 - 1e-9)
    plan = try_plan(graph, 10**6, "auto", **asked, effort=0.05)
    assert plan.makespan_s == roomy.makespan_s, "with all memory, only what must runs again"
    assert plan.status == "optimal"


def test_what_must_run_again_is_there_twice():
    """And so is what it reads, where that must be made anew, too."""
    ops = (
        schedsim.Op("a", writes={"x": 8}, time_s=1),
        schedsim.Op("b", reads=("x",), writes={"y": 8}, time_s=2),
        schedsim.Op("c", reads=("y",), writes={"z": 8}, time_s=4),
        schedsim.Op("grad.c", "backward", 1, reads=("z", "y"), writes={"g": 8}),
        schedsim.Op("grad.a", "backward", 1, reads=("g", "x")),
    )
    ruled = RecomputationRules((), ("a", "b")).of_workload(schedsim.Graph("three", ops))
    assert doubled(ruled).graph.op_names == (
        *("a", "b", "c", "a~again", "b~again", "grad.c", "grad.a"),
    )
    plan = with_recomputed(ruled, 10**3, store_all)
    assert plan.schedule.names == ["a", "b", "c", "a", "b", "grad.c", "grad.a"]
    assert (plan.makespan_s, plan.status) == (12.0, "optimal")
    assert plan.bound_scope <= ANY_SCHEDULE
