"""Schedules: what they are made of, when two are equal, and how they are bound to a workload."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from four_stages import CHAIN

from schedsim import Graph, InvalidScheduleError, Op, Schedule


@pytest.mark.parametrize(
    ("runs", "says", "place"),
    [
        ([0, 3], "schedule[1] is 3", 1),
        ([0, 1, -1], "schedule[2] is -1", 2),
        ([2**40], f"schedule[0] is {2**40}", 0),
        ([0.0, 1.0], "1 dimensions of float64", None),
        ([True], "1 dimensions of bool", None),
        (["f"], "1 dimensions of <U1", None),
        ([[0, 1]], "2 dimensions of int64", None),
        (0, "0 dimensions of int64", None),
    ],
)
def test_what_are_no_indices_is_refused(runs, says, place):
    """Before any conversion could cut or wrap it; with the remedy."""
    with pytest.raises(InvalidScheduleError) as caught:
        Schedule(["f", "g", "h"], runs)
    assert says in caught.value.message
    assert caught.value.run_index == place
    assert "from_names" in caught.value.hint


def test_an_empty_schedule_is_one():
    """It has no length, and is bound to any workload."""
    empty = Schedule(["f"], [])
    assert (len(empty), empty.names, empty.bind(CHAIN).size) == (0, [], 0)
    assert empty == Schedule.from_names([])


def test_nobody_can_change_it():
    """Neither an attribute nor a run, nor through the array that was given."""
    given = np.array([0, 1])
    schedule = Schedule(["f", "g"], given)
    given[0] = 1
    assert schedule.names == ["f", "g"]
    with pytest.raises(AttributeError, match="immutable"):
        schedule.runs_with = "x"
    with pytest.raises(ValueError, match="read-only"):
        schedule.runs[0] = 1


def test_two_are_equal_that_run_the_same_ops():
    """Whatever their tables and what they run with; equal ones have one hash."""
    one = Schedule(["f", "g"], [0, 1, 0])
    for same in (
        Schedule(["g", "x", "f"], [2, 0, 2]),
        Schedule.from_names(["f", "g", "f"]),
        Schedule(["f", "g"], [0, 1, 0], runs_with="copies"),
        pickle.loads(pickle.dumps(one)),
    ):
        assert same == one
        assert hash(same) == hash(one)
    for other in (Schedule(["f", "g"], [0, 1]), Schedule(["g", "f"], [0, 1, 0]), "f g f"):
        assert other != one


def test_what_it_runs_with_goes_along_to_other_processes():
    """So that a worker refuses to simulate it without its plan, too."""
    schedule = Schedule(["f"], [0], runs_with="a plan with copies")
    assert pickle.loads(pickle.dumps(schedule)).runs_with == "a plan with copies"


def test_store_all_runs_what_must_run():
    """In the workload's own order; copies need not."""
    assert Schedule.store_all(CHAIN).names == list(CHAIN.op_names)
    ops = (
        Op("f", writes={"x": 1}),
        Op("down", stream="d2h", reads=("x",), required=False),
        Op("b", "backward", reads=("x",)),
    )
    assert Schedule.store_all(Graph("g", ops)).names == ["f", "b"]


def test_binding_finds_ops_by_name():
    """The table of the schedule may be another; a name that is not there is said with its place."""
    schedule = Schedule(["loss", "F1", "F0"], [2, 1, 0, 2])
    assert schedule.bind(CHAIN).tolist() == [0, 1, 4, 0]
    # A name of the table that never runs does not matter.
    assert Schedule(["nobody", "F0"], [1]).bind(CHAIN).tolist() == [0]
    with pytest.raises(InvalidScheduleError) as caught:
        Schedule.from_names(["F0", "los", "F1", "los"]).bind(CHAIN)
    error = caught.value
    assert (error.rule, error.run_index, error.op_name) == ("unknown op", 1, "los")
    assert error.message == "schedule[1]: unknown op 'los' in workload 'four'"
    assert "'loss'" in error.hint


def test_a_long_one_is_cut_in_print():
    """The first and last runs, and how many there are; 24 are shown whole."""
    names = [f"f{i}" for i in range(25)]
    assert repr(Schedule.from_names(names[:24])) == f"Schedule({' '.join(names[:24])})"
    text = repr(Schedule.from_names(names))
    assert text == f"Schedule({' '.join(names[:12])} ... {' '.join(names[-6:])}; 25 runs)"
