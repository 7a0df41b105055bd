"""Ops that free part of what they read before they write: their workspace is negative."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from chains import random_chain
from fixed_order import fixed_order_optimum
from training_graphs import random_training_graph, some_budget

from schedsim import Chain, Graph, InvalidWorkloadError, Op, Schedule, Stage, load, save, simulate
from schedsim.api import try_plan
from schedsim.plans.maximize import contains


def freeing(graph: Graph, rng: np.random.Generator) -> Graph:
    """`graph` with workspaces that are negative as far as they may be."""

    def own(op: Op) -> int:
        return op.workspace_bytes - int(rng.integers(0, op.workspace_bytes + most(op) + 1))

    def most(op: Op) -> int:
        return 0 if op.phase == "forward" else sum(op.writes.values())

    return replace(graph, ops=tuple(replace(op, workspace_bytes=own(op)) for op in graph.ops))


def two(backward: int, loss: int = 0, gradients: tuple[int, ...] = ()) -> Chain:
    """Two stages, the second of which asks for `backward` beside the 7 bytes that it writes."""
    after = sum(gradients[1:])
    later = sum(gradients[2:])
    stages = (Stage("s0", 1, 1, 7, 9, after, after), Stage("s1", 1, 1, 5, 6, later, backward))
    return Chain("two", 4, stages, 0, 0.0, loss, gradient_bytes=gradients)


def test_what_an_op_asks_for_is_not_negative():
    """A workspace takes away no more than the op writes; that of a forward takes nothing away."""
    two(-7, -5)
    with pytest.raises(InvalidWorkloadError, match="negative"):
        two(-8)
    with pytest.raises(InvalidWorkloadError, match="negative"):
        two(0, -6)
    with pytest.raises(InvalidWorkloadError, match="negative"):
        Graph("g", (Op("F", writes={"t": 3}, workspace_bytes=-1),))
    Graph("g", (Op("B", "backward", writes={"t": 3}, workspace_bytes=-3),))
    with pytest.raises(InvalidWorkloadError, match="negative"):
        Graph("g", (Op("B", "backward", writes={"t": 3}, workspace_bytes=-4),))


def test_gradients_beside_are_still_counted():
    """4 bytes are there before the second backward, which writes 7 and 3 more."""
    two(4 - 7, 4, (0, 3, 4))
    with pytest.raises(InvalidWorkloadError, match="beside"):
        two(4 - 7 - 1, 4, (0, 3, 4))


def test_the_categories_add_up_and_none_is_negative():
    """What is freed first makes room for gradients."""
    chain = two(-7, -5)
    found = simulate(chain, Schedule.store_all(chain))
    # The input, both bundles, and the gradients of 5 and of 7 bytes, of which 7 do not count.
    assert found.memory_bytes[3] == 4 + 9 + 6 + 5
    for table in (found.timeline, found.pool_timeline()):
        assert all(row.min() >= 0 for row in table.values())
    assert np.array_equal(sum(found.timeline.values()), found.memory_bytes)


def test_files_and_comparisons_know_it(tmp_path):
    """A file gives it back; a larger step with more freed contains the smaller one."""
    chain = two(-7, -5)
    for workload in (chain, chain.graph):
        save(workload, tmp_path / "file.json")
        assert load(tmp_path / "file.json") == workload
    stages = (chain.stages[0], replace(chain.stages[1], backward_workspace_bytes=-6))
    assert contains(replace(chain, stages=stages), chain)
    assert not contains(chain, replace(chain, stages=stages))


@pytest.mark.parametrize("seed", range(2))
def test_planners_find_the_optimum(seed):
    """On graphs against the oracle of the fixed order, on chains against one another."""
    rng = np.random.default_rng(seed)
    graph = freeing(random_training_graph(rng, 3), rng)
    budget = some_budget(rng, graph)
    want = fixed_order_optimum(graph, budget)
    for planner in ("cuts", "checkmate", "moccasin"):
        plan = try_plan(graph, budget, planner)
        assert plan.feasible != math.isinf(want)
        if plan.feasible:
            assert plan.makespan_s >= want - 1e-9
            assert plan.status != "optimal" or plan.makespan_s == pytest.approx(want)
    chain = random_chain(rng, 4)
    written = [0, *(stage.output_bytes for stage in chain.stages)]
    stages = tuple(
        replace(stage, backward_workspace_bytes=-size)
        for stage, size in zip(chain.stages, written, strict=False)
    )
    chain = replace(chain, stages=stages, loss_workspace_bytes=-written[-1])
    peak = simulate(chain, Schedule.store_all(chain)).peak_bytes
    least = try_plan(chain, 1, "frontier").min_feasible_bytes
    budget = (least + peak) // 2
    plans = [try_plan(chain, budget, planner) for planner in ("frontier", "chain_optimum")]
    assert all(simulate(chain, plan).peak_bytes <= budget for plan in plans)
    assert plans[1].makespan_s <= plans[0].makespan_s
