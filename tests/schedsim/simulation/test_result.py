"""What a simulation says of runs, tensors, streams and times: by hand."""

from __future__ import annotations

import pytest
from offloaded_stages import offloaded

from schedsim import Chain, Graph, Op, Schedule, Stage, simulate
from schedsim.simulation.result import LiveTensor

TWO = Chain("two", 4, (Stage("s0", 1, 2, 4, 10, 1, 3), Stage("s1", 1, 2, 4, 10, 1, 3)))


def test_printing_says_the_essentials():
    """Peak, the op that sets it, and the overhead."""
    text = str(simulate(TWO, Schedule.from_names(["F0", "F1", "loss", "B1", "F0", "B0"])))
    assert "29 B" in text
    assert "(B1)" in text
    assert "+16.67%" in text


AGAIN = Schedule.from_names(["F0", "F1", "loss", "B1", "F0", "B0"])


def test_times_of_one_stream():
    """Runs follow one another; each starts as the one before it ends."""
    simulation = simulate(TWO, AGAIN)
    assert simulation.run_s.tolist() == [1, 1, 0, 2, 1, 2]
    assert simulation.end_s.tolist() == [1, 2, 2, 4, 5, 7]
    assert simulation.start_s.tolist() == [0, 1, 2, 2, 4, 5]
    assert simulation.event_s.tolist() == [0, 1, 1, 2, 2, 2, 2, 4, 4, 5, 5, 7]
    assert simulation.busy_s == {"compute": 7}
    assert simulation.run_names == AGAIN.names
    assert (simulation.num_runs, simulation.num_recomputed, simulation.num_copies) == (6, 1, 0)
    assert simulation.overhead == pytest.approx(1 / 6)


def test_what_is_alive_by_run():
    """During B1, largest first: its bundle of 6, then tensors of 4; a run may count from the end.

    a1 was made by F0 for F1 and B1; F0 runs again for B0, so that a0 is a checkpoint.
    """
    simulation = simulate(TWO, AGAIN)
    alive = simulation.live_tensors()
    assert simulation.peak_run == 3
    assert alive[0].name == "r2"
    assert {tensor.name for tensor in alive} == {"r2", "a0", "a1", "a2", "d1", "d2"}
    assert sum(tensor.size_bytes for tensor in alive) + 3 == simulation.peak_bytes
    (a0,) = [tensor for tensor in alive if tensor.name == "a0"]
    assert a0 == LiveTensor("a0", 4, "checkpoints", first_run=0, last_run=5)
    (a1,) = [tensor for tensor in alive if tensor.name == "a1"]
    assert (a1.first_run, a1.last_run, a1.category) == (0, 3, "saved")
    assert simulation.live_tensors(-1) == simulation.live_tensors(5)
    assert simulation.by_category(-3) == simulation.by_category(3) == simulation.by_category()
    for outside in (6, -7):
        with pytest.raises(IndexError):
            simulation.live_tensors(outside)


def test_parts_add_up_to_the_memory_of_each_run():
    """Also where an output takes over its input's storage, and where a step has no time."""
    ops = (
        Op("f", writes={"x": 8}),
        Op("g", reads=("x",), writes={"y": 12}, in_place={"y": "x"}, workspace_bytes=2),
        Op("b", "backward", reads=("y",)),
    )
    graph = Graph("g", ops, static_bytes=3)
    simulation = simulate(graph, Schedule.store_all(graph))
    assert simulation.memory_bytes.tolist() == [11, 17, 15]
    assert [sum(simulation.by_category(run).values()) for run in range(3)] == [11, 17, 15]
    assert (simulation.makespan_s, simulation.overhead) == (0, 0)  # nothing is divided by


def test_several_streams_and_pools_are_printed_with_their_peaks():
    """A line for each pool, where there are several."""
    simulation = simulate(*offloaded("F0 d2h:r1 F1 loss B1 h2d:r1 B0"))
    text = str(simulation)
    assert "  device    32 B at most" in text
    assert "  host      6 B at most" in text
    assert "at most" not in str(simulate(TWO, AGAIN))
    assert simulation.stream_names[0] == "compute"
    assert [simulation.stream_names[q] for q in simulation.run_streams] == [
        *("compute", "d2h", "compute", "compute", "compute", "h2d", "compute")
    ]


def test_a_tensor_that_is_away_is_not_alive_on_the_device():
    """Between its copies r1 is in host memory alone, and it comes back as a new instance."""
    simulation = simulate(*offloaded("F0 d2h:r1 F1 loss B1 h2d:r1 B0"))
    # As h2d:r1 starts, B1 goes on; its name on the host is another.
    during = {(t.name, t.pool) for t in simulation.live_tensors(5)}
    assert ("r1", "device") in during
    assert any(pool == "host" for _, pool in during)
    at_the_end = {(t.name, t.pool) for t in simulation.live_tensors(6)}
    assert ("r1", "device") in at_the_end
    assert not any(pool == "host" for _, pool in at_the_end)
