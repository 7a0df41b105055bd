"""Why a schedule got stuck: who waits for whom, what holds the memory, and what would help."""

from __future__ import annotations

import pytest
from offloaded_stages import offloaded, two_stages

from schedsim import DeadlockError, Graph, Op, Schedule, simulate
from schedsim.plans.links import Link, with_copies


def test_a_deadlock_says_who_waits_for_what():
    """r1 is fetched too early: B1 finds 2 of the 4 bytes that it needs."""
    graph, schedule = offloaded("F0 d2h:a1 d2h:r1 h2d:a1 h2d:r1 F1 loss B1 B0")
    with pytest.raises(DeadlockError) as caught:
        simulate(graph, schedule, {"device": 30})
    error = caught.value
    assert (error.rule, error.run_index, error.op_name) == ("memory", 7, "B1")
    assert len(error.waits) == 1
    assert "after 7 of 9 runs" in error.message
    assert "schedule[7] B1 on compute waits for 4 B of pool 'device', where 2 B are free" in str(
        error
    )
    assert "r1 (6 B, until schedule[8] B0)" in error.message
    assert error.hint.startswith("2 B more in 'device'")


def test_a_deadlock_names_runs_that_wait_for_others():
    """The loss waits for memory, and the copy of its gradient for the loss."""
    chain = two_stages()
    graph = with_copies(chain, d2h=Link(4), h2d=Link(4), tensors=["d2"])
    schedule = Schedule.from_names(["F0", "F1", "loss", "d2h:d2", "B1", "B0"])
    with pytest.raises(DeadlockError) as caught:
        simulate(graph, schedule, {"device": 27})
    assert caught.value.waits[1] == ("schedule[3] d2h:d2 on d2h waits for d2 of schedule[2] loss")


def test_the_largest_holders_are_named_and_the_rest_counted():
    """Five tensors wait for b; the three largest are named with who reads them, results too."""
    ops = (
        *(Op(f"f{i}", writes={f"x{i}": 10 * i}) for i in range(1, 6)),
        Op("g", workspace_bytes=70),
        Op("b", "backward", reads=tuple(f"x{i}" for i in range(1, 6))),
    )
    graph = Graph("g", ops, static_bytes=7, results=("x5",))
    with pytest.raises(DeadlockError) as caught:
        simulate(graph, Schedule.store_all(graph), {"device": 200})
    message = caught.value.message
    assert (
        "schedule[5] g on compute waits for 70 B of pool 'device', where 43 B are free" in message
    )
    held = message.split("held by ")[1]
    assert held.startswith(
        "x5 (50 B, until schedule[6] b), x4 (40 B, until schedule[6] b), "
        "x3 (30 B, until schedule[6] b), 2 more, 7 B of static bytes"
    )
    assert caught.value.hint.startswith("27 B more in 'device' would let it start, or a schedule")


def test_a_result_that_nobody_reads_is_held_to_the_end():
    """And where nothing but static bytes is there, no other schedule is advised."""
    ops = (Op("f", writes={"x": 5}), Op("g", workspace_bytes=6))
    graph = Graph("g", ops, results=("x",))
    with pytest.raises(DeadlockError, match=r"held by x \(5 B, to the end\)"):
        simulate(graph, Schedule.store_all(graph), {"device": 10})
    alone = Graph("g", ops[1:], static_bytes=5)
    with pytest.raises(DeadlockError) as caught:
        simulate(alone, Schedule.store_all(alone), {"device": 10})
    assert caught.value.hint == "1 B more in 'device' would let it start"


def test_of_many_streams_the_first_four_are_said_and_all_are_known():
    """Seven devices wait for a message from one that lacks memory."""
    ops = (
        Op("f", stream="compute:0", writes={"x": 8}, workspace_bytes=8),
        *(Op(f"r{i}", stream=f"compute:{i}", reads=("x",)) for i in range(1, 8)),
    )
    graph = Graph("g", ops)
    with pytest.raises(DeadlockError) as caught:
        simulate(graph, Schedule.store_all(graph), {"device:0": 15})
    assert len(caught.value.waits) == 8
    assert caught.value.message.endswith("; 4 more wait")
    # Who lacks memory comes first, whichever stream that is.
    assert "start: schedule[0] f on compute:0 waits for 16 B" in caught.value.message
    assert "schedule[3] r3 on compute:3 waits for x of schedule[0] f" in caught.value.message


def test_a_copy_that_may_not_start_before_a_run_says_so():
    """It stands behind a run that lacks memory, and needs nothing of it."""
    graph, _ = offloaded("F0")
    schedule = Schedule.from_names(["F0", "F1", "loss", "B1", "d2h:a0", "h2d:a0", "B0"])
    with pytest.raises(DeadlockError) as caught:
        simulate(graph, schedule, {"device": 27})
    assert caught.value.waits[1] == (
        "schedule[4] d2h:a0 on d2h waits for schedule[3] B1, issued before it"
    )


def test_an_output_in_place_needs_only_what_is_more():
    """y takes over the 8 bytes of x and needs 4 besides; 3 are free."""
    ops = (
        Op("f", writes={"x": 8}),
        Op("g", reads=("x",), writes={"y": 12}, in_place={"y": "x"}),
        Op("b", "backward", reads=("y",)),
    )
    graph = Graph("g", ops)
    assert simulate(graph, Schedule.store_all(graph), {"device": 12}).peak_bytes == 12
    with pytest.raises(DeadlockError, match="waits for 4 B of pool 'device', where 3 B are free"):
        simulate(graph, Schedule.store_all(graph), {"device": 11})
