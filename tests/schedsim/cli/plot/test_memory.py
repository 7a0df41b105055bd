"""``plot timeline``, ``gantt`` and ``schedule``: which step is drawn, and what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
from four_stages import CHAIN
from offloaded_stages import offloaded

import schedsim
from schedsim.cli.plot import memory
from schedsim.files.document import save


@pytest.fixture
def drawn(monkeypatch, folder) -> list:
    """Simulations that are drawn and what they are drawn with; pictures are empty files."""
    seen: list = []

    def record(simulation, *more, **options):
        seen.append((more[0] if more else simulation, options))
        return "figure"

    for where in (
        "plot.draw_timeline",
        "plot.draw_schedule",
        "gantt.draw_pools",
        "gantt.draw_gantt",
    ):
        monkeypatch.setattr(f"schedsim.figures.{where}", record)
    monkeypatch.setattr(memory, "write_picture", lambda figure, output: Path(output).touch())
    save(schedsim.plan(CHAIN, 60), "plan.json")
    return seen


@pytest.mark.parametrize("kind", ["timeline", "gantt", "schedule"])
@pytest.mark.parametrize(
    ("more", "peak", "runs"),
    [("", 92, 9), ("--mem 60", 60, 11), ("plan.json", 60, 11), ("--mem 100", 92, 9)],
)
def test_the_step_that_is_drawn(drawn, call, kind, more, peak, runs):
    """That of a plan, of one made within --mem, or store-all."""
    code, _, err = call(f"plot {kind} chain.json {more} -o x.svg")
    assert code == 0, err
    simulation = drawn[0][0]
    assert (simulation.peak_bytes, simulation.num_runs) == (peak, runs)


def test_a_limit_is_drawn_where_there_is_one(drawn, call):
    """The budget of a plan, or another one; names in a file are a schedule."""
    Path("runs.txt").write_text(" ".join(CHAIN.op_names))
    for more, limit in (("", None), ("plan.json", 60), ("plan.json --mem 70", 70),
                        ("--schedule runs.txt --mem 50%", 46)):  # fmt: skip
        assert call(f"plot timeline chain.json {more} -o x.svg")[0] == 0
        assert drawn.pop()[1]["budget_bytes"] == limit
    assert call("plot gantt chain.json plan.json -o x.svg")[0] == 0
    assert drawn.pop()[1] == {"capacities": {"device": 60}}


def test_several_streams_are_drawn_over_time(drawn, call):
    """Their capacities hold back runs, and are drawn."""
    graph, schedule = offloaded("F0 d2h:r1 F1 loss B1 h2d:r1 B0")
    save(graph, "graph.json")
    Path("runs.txt").write_text(" ".join(schedule.names))
    line = "plot timeline graph.json --schedule runs.txt -o x.svg"
    assert call(f"{line} --capacity device=26 --capacity host=9")[0] == 0
    simulation, options = drawn.pop()
    assert simulation.peak_by_pool["device"] == 26
    assert options == {"capacities": {"device": 26, "host": 9}}
    for more, says in (
        ("--against time", "--against time needs a single stream"),
        ("--allocator cuda-caching", "--allocator needs a single stream"),
    ):
        code, _, err = call(f"{line} {more}")
        assert code == 2
        assert says in err
    assert drawn == []


@pytest.mark.parametrize("capacity", ["device=1B", "device=500GB", "device=60B"])
@pytest.mark.parametrize("more", ["", "--mem 60", "plan.json", "--schedule runs.txt"])
def test_a_capacity_of_one_stream_is_refused_before_a_deadlock(drawn, call, capacity, more):
    """Whatever would fit: a timeline of one stream in one memory has a limit, and no capacity."""
    Path("runs.txt").write_text(" ".join(CHAIN.op_names))
    code, _, err = call(f"plot timeline chain.json {more} --capacity {capacity} -o x.svg")
    assert (code, drawn) == (2, [])
    assert "--capacity needs several streams or memory pools" in err
    assert "--mem draws a limit" in err
    assert "no other can start" not in err


def test_what_an_allocator_reserves_is_drawn_with_its_limit(drawn, call):
    """A plan made for an allocator runs on a device of its budget; others as they need."""
    assert call("plot timeline chain.json --allocator best-fit -o x.svg")[0] == 0
    allocation = drawn.pop()[1]["allocation"]
    assert (allocation.allocator, allocation.capacity_bytes) == ("best-fit", None)
    plan = schedsim.plan(CHAIN, 10**6, allocator="best-fit")
    save(plan, "reserved.json")
    assert call("plot timeline chain.json reserved.json -o x.svg")[0] == 0
    allocation = drawn.pop()[1]["allocation"]
    assert allocation.peak_reserved_bytes == plan.setting.allocator.reserved_bytes
    assert call("plot timeline chain.json -o x.svg")[0] == 0
    assert drawn.pop()[1]["allocation"] is None


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("timeline chain.json --capacity device=500 -o x.svg", 2, "one of each"),
        ("timeline chain.json --mem 10 -o x.svg", 1, "nothing fits 10 B"),
        ("gantt chain.json plan.json --schedule plan.json -o x.svg", 2, "both a plan and"),
        ("schedule chain.json -o x.tiff", 2, "cannot draw '.tiff'"),
        ("timeline chain.json --alloc-conf x:1 -o x.svg", 2, "--alloc-conf belongs to"),
    ],
)
def test_what_cannot_be_drawn(drawn, call, line, code, says):
    """And no picture is begun."""
    got, out, err = call(f"plot {line}")
    assert (got, out, drawn) == (code, "", [])
    assert says in err
