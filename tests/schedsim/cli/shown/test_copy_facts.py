"""What a plan says of its copies: by hand, on the engine's own example."""

from __future__ import annotations

from offloaded_stages import offloaded

from schedsim import Graph, Op, Schedule, simulate
from schedsim.cli.shown.copy_facts import copy_facts
from schedsim.plans.links import Link, with_copies
from schedsim.plans.offloading import Offloading

LINK = Offloading(Link(4), Link(4))


def test_a_copy_by_hand():
    """r1 of 6 bytes goes and comes at 4 B/s: 1.5 s each of a step of 6 s, all hidden."""
    simulation = simulate(*offloaded("F0 d2h:r1 F1 loss B1 h2d:r1 B0"))
    facts = dict(copy_facts(simulation, LINK))
    assert facts == {
        "offloaded": "1 tensors, 6 B: r1",
        "host memory": "6 B",
        "link busy": "d2h 25 %, h2d 25 % of the step, at 4 B/s and 4 B/s",
        "exposed": "0 s without an op running, 0.00 % of the step",
    }
    limited = dict(copy_facts(simulation, Offloading(Link(4), Link(8), host_bytes=10)))
    assert limited["host memory"] == "6 B of 10 B"
    assert limited["link busy"].endswith("at 4 B/s and 8 B/s")


def test_a_step_that_waits_says_for_how_long():
    """The fetch of r1 is issued behind B1's start, and held up: B0 waits for a part of it."""
    graph, _ = offloaded("F0")
    schedule = Schedule.from_names(["F0", "d2h:r1", "F1", "loss", "B1", "h2d:r1", "B0"])
    simulation = simulate(graph, schedule, {"device": 26})
    waited = simulation.makespan_s - 6
    assert waited > 0
    facts = dict(copy_facts(simulation, LINK))
    share = f"{waited / simulation.makespan_s:.2%}".replace("%", " %")
    assert facts["exposed"] == f"{waited:g} s without an op running, {share} of the step"


def test_the_largest_are_named_and_the_rest_counted():
    """Six of nine, the largest first."""
    ops = [Op(f"f{i}", time_s=1.0, writes={f"x{i}": i}) for i in range(1, 10)]
    ops.append(Op("b", "backward", time_s=1.0, reads=tuple(f"x{i}" for i in range(1, 10))))
    graph = with_copies(Graph("g", tuple(ops)), d2h=Link(100), h2d=Link(100))
    names = [op.name for op in ops]
    copies = [f"d2h:x{i}" for i in range(1, 10)], [f"h2d:x{i}" for i in range(1, 10)]
    schedule = Schedule.from_names([*names[:-1], *copies[0], *copies[1], "b"])
    facts = dict(copy_facts(simulate(graph, schedule), LINK))
    assert facts["offloaded"] == "9 tensors, 45 B: x9, x8, x7, x6, x5, x4, and 3 more"


def test_a_link_that_is_not_used_says_so():
    """One line."""
    simulation = simulate(*offloaded("F0 F1 loss B1 B0"))
    assert copy_facts(simulation, LINK) == [("offloaded", "nothing: the link does not help here")]


def test_what_goes_out_counts_whether_it_comes_back_or_not():
    """a0 stays in host memory, r1 returns: two tensors of 4 and 6 bytes."""
    simulation = simulate(*offloaded("F0 d2h:r1 d2h:a0 F1 loss B1 h2d:r1 B0"))
    assert dict(copy_facts(simulation, LINK))["offloaded"] == "2 tensors, 10 B: r1, a0"
