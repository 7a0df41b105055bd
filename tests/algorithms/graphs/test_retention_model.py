"""The model of retention intervals: its solutions are schedules, and no schedule is missing."""

from __future__ import annotations

import numpy as np
import pytest
from chains import random_graph
from fixed_order import optimum_at, staged_frontier
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.graphs._retention_model import RetentionModel
from tiers import examples
from training_graphs import unit_training_chain

from schedsim import Graph, Op, Schedule, simulate

cp_model = pytest.importorskip("ortools.sat.python.cp_model", reason="moccasin needs the extra cp")


def modelled(graph: Graph, budget: int, *, num_intervals: int = 2, order="fixed") -> RetentionModel:
    """In bytes and in seconds, which must be whole."""
    arrays = graph.arrays
    return RetentionModel(
        graph,
        sizes=arrays.tensor_bytes.tolist(),
        workspaces=arrays.op_workspace_bytes.tolist(),
        saving_workspaces=arrays.op_saving_workspace_bytes.tolist(),
        room=budget - graph.static_bytes,
        costs=arrays.op_time_s.astype(int).tolist(),
        num_intervals=num_intervals,
        order=order,
    )


def solved(model: RetentionModel):
    """The runs and the seconds of repeats; ``None`` where there is no solution."""
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(model.model)
    if status == cp_model.INFEASIBLE:
        return None
    assert status == cp_model.OPTIMAL
    return model.runs(solver.value), solver.objective_value


def peak_of(graph: Graph, runs=None) -> int:
    schedule = Schedule.store_all(graph) if runs is None else Schedule(graph.op_names, runs)
    return simulate(graph, schedule).peak_bytes


@settings(max_examples=examples(25), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(2, 5))
def test_solutions_are_the_best_schedules_of_the_class(seed, num):
    """By enumeration; what the model charges is what the simulator charges."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, num)
    frontier = staged_frontier(graph, 1)
    for budget in rng.integers(peak_of(graph) // 2, peak_of(graph) + 1, 2).tolist():
        found = solved(modelled(graph, budget))
        want = optimum_at(frontier, budget)
        if found is None:
            assert want == float("inf")
            continue
        runs, extra_s = found
        assert peak_of(graph, runs) <= budget
        assert graph.store_all_s + extra_s == pytest.approx(want)
        assert simulate(graph, Schedule(graph.op_names, runs)).makespan_s == pytest.approx(want)


def test_one_interval_is_no_recomputation():
    """Then the store-all peak is the least budget."""
    graph = unit_training_chain(4)
    peak = peak_of(graph)
    assert solved(modelled(graph, peak, num_intervals=1)) == (list(range(graph.num_ops)), 0)
    assert solved(modelled(graph, peak - 1, num_intervals=1)) is None
    runs, extra_s = solved(modelled(graph, peak - 1))
    assert (len(runs), extra_s) == (graph.num_ops + 1, 1)


def test_what_must_run_once_has_one_interval():
    """And so has no repeat, where the op beside it has one."""
    ops = (
        Op("k", time_s=1, writes={"x": 4}, once=True),
        Op("f", time_s=1, writes={"y": 4}),
        Op("l", time_s=1, workspace_bytes=4),
        Op("b", time_s=1, reads=("x", "y")),
    )
    model = modelled(Graph("once", ops), 8, num_intervals=3)
    assert model.num_runs[:2] == [1, 3]
    assert solved(model) == ([0, 1, 2, 1, 3], 1)


def test_storage_that_is_taken_over_counts_once():
    """8 bytes hold x and y; a later reader of x has it made again, or 16 bytes hold both."""
    ops = [
        Op("f", time_s=1, writes={"x": 8}),
        Op("g", time_s=1, reads=("x",), writes={"y": 8}, in_place={"y": "x"}),
        Op("h", time_s=1, reads=("y",)),
    ]
    assert solved(modelled(Graph("in place", tuple(ops)), 8)) == ([0, 1, 2], 0)
    ops.append(Op("k", time_s=1, reads=("x",)))
    assert solved(modelled(Graph("again", tuple(ops)), 8)) == ([0, 1, 2, 0, 3], 1)
    assert solved(modelled(Graph("again", tuple(ops)), 16)) == ([0, 1, 2, 3], 0)


def test_an_optional_output_that_nobody_reads_is_not_made():
    """And then takes neither its bytes nor the workspace of saving it."""
    save = Op("f", time_s=1, writes={"s": 9}, optional=("s",), saving_workspace_bytes=5)
    read = (save, Op("b", time_s=1, reads=("s",)))
    assert solved(modelled(Graph("unread", (save,)), 0)) == ([0], 0)
    assert solved(modelled(Graph("read", read), 13)) is None
    assert solved(modelled(Graph("read", read), 14)) == ([0, 1], 0)


def test_in_free_order_first_runs_change_places():
    """h needs g's output alone: run first, it leaves room for f's."""
    ops = (
        Op("f", time_s=1, writes={"x": 6}),
        Op("g", time_s=1, writes={"y": 6}),
        Op("h", time_s=1, reads=("y",)),
        Op("i", time_s=1, reads=("x",)),
    )
    graph = Graph("order", ops)
    assert solved(modelled(graph, 6))[1] == 1
    runs, extra_s = solved(modelled(graph, 6, order="free"))
    assert extra_s == 0
    assert peak_of(graph, runs) == 6


@pytest.mark.parametrize("order", ["fixed", "free"])
def test_a_hint_is_a_solution_by_itself(order):
    """With all that was hinted fixed, the runs are those of the schedule."""
    graph = unit_training_chain(4)
    ops = list(range(graph.num_ops))
    runs = [*ops[:6], 1, *ops[6:]]
    model = modelled(graph, 100, order=order)
    model.hint(runs)
    hint = model.model.proto.solution_hint
    proto = model.model.proto
    for index, value in zip(list(hint.vars), list(hint.values), strict=True):
        domain = proto.variables[index].domain
        domain.clear()
        domain.extend([value, value])
    found = solved(model)
    assert found is not None
    assert found[0] == runs
