"""Graphs that are chains by another name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from schedsim.algorithms.auto import auto
from schedsim.algorithms.chains.frontier import frontier
from schedsim.algorithms.graphs._chain_form import chain_form, chain_start

from schedsim import Chain, Graph, Op, Schedule, simulate
from schedsim.plans.effort import Effort
from schedsim.workloads import SYNTHETIC


def renamed(graph: Graph) -> Graph:
    """The same with names that say nothing."""
    ops = tuple(replace(op, name=f"op{i}") for i, op in enumerate(graph.ops))
    return replace(graph, ops=ops)


@pytest.mark.parametrize("name", ["uniform", "heavy-tailed", "one-huge"])
def test_a_lowered_chain_is_one(name):
    """With its sizes and times, whatever its ops are called."""
    chain = SYNTHETIC[name](9, 1)
    found = chain_form(renamed(chain.graph))
    assert found.store_all_s == pytest.approx(chain.store_all_s)
    for mine, theirs in zip(found.stages, chain.stages, strict=True):
        assert replace(mine, name="") == replace(theirs, name="")


@pytest.mark.parametrize("share", [0.35, 0.6])
def test_what_the_programme_finds_is_a_schedule_of_the_graph(share):
    """As fast, within the same memory."""
    chain = SYNTHETIC["heavy-tailed"](12, 2)
    graph = renamed(chain.graph)
    budget = int(share * simulate(chain, Schedule.store_all(chain)).peak_bytes)
    plan = frontier(chain, budget)
    start = chain_start(graph, chain_form(graph), budget, Effort(1.0))
    replayed = simulate(graph, start)
    assert (replayed.makespan_s, replayed.peak_bytes) == (
        pytest.approx(plan.makespan_s),
        plan.peak_bytes,
    )


def test_one_without_a_loss_is_one_too():
    """Its last backward op follows its last forward op."""
    num = 6
    ops = [Op(f"{i}", time_s=1, reads=(f"t{i - 1}",) if i else (), writes={f"t{i}": 1})
           for i in range(num)]  # fmt: skip
    for i in range(num - 1, -1, -1):
        k = 2 * num - 1 - i
        reads = [f"t{i}"] + ([f"t{i - 1}"] if i else []) + ([f"t{k - 1}"] if k > num else [])
        ops.append(Op(f"{k}", "backward", time_s=1, reads=tuple(reads), writes={f"t{k}": 1}))
    graph = Graph("no loss", tuple(ops))
    assert chain_form(graph).num_stages == num
    start = chain_start(graph, chain_form(graph), 6, Effort(1.0))
    assert simulate(graph, start).peak_bytes <= 6


def test_a_skip_makes_it_no_chain():
    """Neither one in the forward pass nor one into the backward pass of another stage."""
    graph = SYNTHETIC["uniform"](5, 0).graph
    for op, tensor in (("F3", "a1"), ("B4", "a2")):
        at = graph.op_index(op)
        ops = list(graph.ops)
        ops[at] = replace(ops[at], reads=(*ops[at].reads, tensor))
        assert chain_form(replace(graph, ops=tuple(ops))) is None


@pytest.mark.slow
def test_sixty_equal_stages_at_the_least():
    """No single edit leads from store-all to so many repeats; `auto` has the programme's."""
    chain = Chain.from_arrays("sixty", 1, forward_s=[1] * 60, backward_s=[1] * 60,
                              output_bytes=[1] * 60, saved_bytes=[1] * 60)  # fmt: skip
    persistent = frontier(chain, 8)
    plan = auto(renamed(chain.graph), 8, effort=0.5)
    assert plan.makespan_s <= persistent.makespan_s
    assert simulate(renamed(chain.graph), plan.schedule).peak_bytes <= 8


def test_auto_on_a_chain_goes_beyond_persistent_schedules_where_it_may():
    """It brings the better of both: at once where it is soon found, else with an effort."""
    chain = Chain.from_arrays("four", 1, forward_s=[1] * 4, backward_s=[1] * 4,
                              output_bytes=[1] * 4, saved_bytes=[1] * 4)  # fmt: skip
    for options in ({}, {"effort": 1.0}, {"order": "free"}, {"order": "fixed", "effort": 1.0}):
        plan = auto(chain, 5, **options)
        assert (plan.makespan_s, plan.status) == (11, "optimal")
        assert str(plan.bound_scope) == "any schedule"
        assert simulate(chain, plan).makespan_s == 11
        bounds = {row.planner: row.lower_bound_s for row in plan.candidates}
        assert (bounds["frontier"], bounds["chain_optimum"]) == (13, 11)


def test_what_the_loss_is_given_is_no_output():
    """Labels larger than the last output: the chain had a stage that saved less than it put out."""
    ops = [
        Op("f0", time_s=1, writes={"x0": 4}),
        Op("f1", time_s=1, reads=("x0",), writes={"x1": 2}),
        Op("l", "loss", time_s=1, reads=("x1", "labels"), writes={"d2": 2}),
        Op("b1", "backward", time_s=1, reads=("d2", "x0", "x1"), writes={"d1": 4}),
        Op("b0", "backward", time_s=1, reads=("d1", "x0")),
    ]
    graph = Graph("labelled", tuple(ops), inputs={"labels": 9})
    assert [stage.output_bytes for stage in chain_form(graph).stages] == [4, 2]
    assert auto(graph, 19, effort=0.1).feasible
