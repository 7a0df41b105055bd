"""What a step waits for: its critical path, and why streams stand idle."""

from __future__ import annotations

from schedsim import Chain, Schedule, Stage, simulate
from schedsim.plans.links import Link, with_copies
from schedsim.simulation.waiting import critical_path, idle_s


def two_stages() -> Chain:
    """Forward 1 s, backward 2 s, activations of 4 bytes and bundles of 10, copies of 1 s each."""
    return Chain("two", 4, (Stage("s0", 1, 2, 4, 10), Stage("s1", 1, 2, 4, 10)))


def test_a_slow_prefetch_is_the_critical_path():
    """B0 waits for h2d:r1, which waited for its place behind B1's start, which came of the loss."""
    graph = with_copies(two_stages(), d2h=Link(12), h2d=Link(1), tensors=["r1"])
    schedule = Schedule.from_names(["F0", "d2h:r1", "F1", "loss", "B1", "h2d:r1", "B0"])
    simulation = simulate(graph, schedule)
    steps = [(step.op_name, step.cause) for step in critical_path(simulation)]
    assert steps == [
        ("F0", "nothing"),
        ("F1", "stream"),
        ("loss", "stream"),
        ("B1", "stream"),
        ("h2d:r1", "issue order"),
        ("B0", "input"),
    ]
    # h2d 2-8, B1 2-4; compute idles 4-8 for r1, d2h 0-1 for it and to the end 10, h2d 0-2 and 8-10.
    assert idle_s(simulation) == {
        "compute": {"input": 4},
        "d2h": {"input": 1, "end": 8.5},
        "h2d": {"issue order": 2, "end": 2},
    }
