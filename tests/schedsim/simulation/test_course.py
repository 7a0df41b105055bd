"""What runs wait for, by the words that files and commands use."""

from __future__ import annotations

from offloaded_stages import offloaded

from schedsim import Graph, Op, Schedule, simulate
from schedsim.simulation.course import CAUSES


def test_memory_is_waited_for():
    """28 bytes: with r1 going to the host at 1-2.5 s, the loss waits for it, and B1 (32 - 6)."""
    graph, schedule = offloaded("F0 d2h:r1 F1 loss B1 h2d:r1 B0")
    simulation = simulate(graph, schedule, {"device": 26})
    # The loss needs 28 with r1, 22 without; h2d:r1 needs 26 + 6 as long as B1 runs.
    assert simulation.start_s.tolist() == [0, 1, 1, 2.5, 2.5, 4.5, 6]
    assert simulation.peak_by_pool["device"] == 26
    causes = [CAUSES[code] for code in simulation.course.cause]
    assert causes == ["nothing", "input", "stream", "memory", "stream", "memory", "input"]
    assert simulation.course.blocker.tolist() == [-1, 0, 0, 1, 3, 4, 5]


def test_a_copy_has_its_place_in_the_schedule():
    """a0 goes at once; behind F0 it may come back when it is there, behind B1 when that starts."""
    early = simulate(*offloaded("F0 d2h:a0 h2d:a0 F1 loss B1 B0"))
    assert early.start_s.tolist()[1:3] == [0, 1]
    late = simulate(*offloaded("F0 d2h:a0 F1 loss B1 h2d:a0 B0"))
    assert late.start_s.tolist()[1:2] == [0]
    assert late.start_s.tolist()[5] == 2
    assert CAUSES[late.course.cause[5]] == "issue order"


def test_the_pass_for_one_stream_uses_the_same_words():
    """The first run waits for nothing, every other for the one before it."""
    graph = Graph("g", tuple(Op(name, time_s=1.0) for name in "abc"))
    linear = simulate(graph, Schedule.store_all(graph))
    engine = simulate(graph, Schedule.store_all(graph), {})
    assert linear.wait_causes == engine.wait_causes == ["nothing", "stream", "stream"]
    assert set(engine.wait_causes) <= set(CAUSES)


def test_of_two_things_that_end_together_the_last_looked_for_counts():
    """A run whose stream and whose input are ready at once waited for its stream."""
    ops = (
        Op("a", time_s=2.0),
        Op("b", stream="compute:1", time_s=2.0, writes={"x": 1}),
        Op("c", reads=("x",), time_s=1.0),
        Op("d", stream="compute:1", time_s=1.0),
        Op("e", stream="compute:2", reads=("x",), time_s=1.0),
    )
    graph = Graph("g", ops)
    simulation = simulate(graph, Schedule.store_all(graph))
    assert simulation.wait_causes == ["nothing", "nothing", "stream", "stream", "input"]
    assert simulation.course.blocker.tolist() == [-1, -1, 0, 1, 1]
