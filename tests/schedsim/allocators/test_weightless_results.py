"""Plans of steps whose gradients outweigh what they compute besides."""

from __future__ import annotations

import pytest

import schedsim
from schedsim import Graph, Op, Schedule, allocate, simulate
from schedsim.allocators.weightless_results import ActivationPlanner, without_result_bytes
from schedsim.api import try_plan
from schedsim.dataflow.recorded_step import RecordedStep

MiB = 1 << 20
LAYERS = 6


@pytest.fixture(scope="module")
def gradients_last():
    """Six layers with activations of 20 MiB and gradients of 50, as an allocator is asked for them.

    No gradient fits in the place of an activation, and the bytes peak at the last gradient,
    whatever is recomputed.
    """
    ops, sizes, holders, records = [], [], [], {}

    def block(size, holder):
        sizes.append(size)
        holders.append(holder)
        return len(sizes) - 1

    for i in range(LAYERS):
        ops.append(Op(f"F{i}", reads=(f"a{i}",), writes={f"a{i + 1}": 20 * MiB}, time_s=1.0))
        records[f"F{i}"] = (block(20 * MiB, f"a{i + 1}"),)
    for i in reversed(range(LAYERS)):
        reads = (f"a{i + 1}", *((f"d{i + 1}",) if i + 1 < LAYERS else ()))
        writes = {f"g{i}": 50 * MiB, f"d{i}": 2 * MiB}
        ops.append(Op(f"B{i}", "backward", reads=reads, writes=writes, time_s=2.0))
        records[f"B{i}"] = tuple(block(size, name) for name, size in writes.items())
    results = tuple(f"g{i}" for i in range(LAYERS))
    recorded = RecordedStep((), tuple(sizes), tuple(holders), records)
    return Graph("late", tuple(ops), inputs={"a0": MiB}, results=results, recorded=recorded)


def test_a_budget_above_the_last_gradient_is_met_by_fewer_activations(gradients_last):
    """The bytes of every schedule peak alike; what is reserved falls with the activations."""
    graph = gradients_last
    plain = allocate(simulate(graph, Schedule.store_all(graph)), num_steps=3)
    bytes_alone = simulate(graph, Schedule.store_all(graph)).peak_bytes
    budget = (plain.peak_reserved_bytes + bytes_alone) // 2
    plan = schedsim.plan(graph, budget)
    assert plan.overhead > 0.0
    assert plan.workload == schedsim.plan(graph, budget, allocator="exact").workload
    played = allocate(plan.simulate(graph), num_steps=3)
    assert played.peak_reserved_bytes == plan.setting.allocator.reserved_bytes <= budget
    assert plan.setting.allocator.num_emptied == 0


def test_a_refusal_names_a_budget_that_the_same_search_meets(gradients_last):
    """Least recomputation is not least memory here: what is named has fewer activations."""
    graph = gradients_last
    bytes_alone = simulate(graph, Schedule.store_all(graph)).peak_bytes
    refused = try_plan(graph, bytes_alone)
    least = refused.min_feasible_bytes
    plain = allocate(simulate(graph, Schedule.store_all(graph)), num_steps=3)
    assert refused.status == "infeasible"
    assert bytes_alone < least < plain.peak_reserved_bytes
    assert try_plan(graph, least).setting.allocator.reserved_bytes <= least


def test_results_lose_their_bytes_and_nothing_else(gradients_last):
    """Also where one takes over the storage of what it is made from."""
    ops = (
        Op("F", writes={"x": 8}),
        Op("B", "backward", reads=("x",), writes={"g": 8}, in_place={"g": "x"}),
    )
    light = without_result_bytes(Graph("one", ops, results=("g",)))
    assert light.ops[1].writes == {"g": 0}
    assert light.ops[0] is ops[0]
    assert not light.ops[1].in_place
    names = Schedule.from_names(("F", "B"))
    assert simulate(light, names).peak_bytes == 8
    asked = []

    def plan(graph, budget_bytes):
        asked.append(graph)
        return try_plan(graph, budget_bytes, allocator="exact")

    planner = ActivationPlanner.of(gradients_last, plan)
    assert planner.most_bytes == (LAYERS * 20 + 2) * MiB
    assert planner.least_bytes < planner.most_bytes
    made = planner(planner.least_bytes)
    assert made.simulate(gradients_last).peak_bytes > planner.most_bytes
    assert all(graph.recorded is None for graph in asked)
