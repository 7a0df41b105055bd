"""What was planned, in words."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from schedsim.validation.compiled.group_sizes import GroupSize
from schedsim.validation.drop_in.call_report import describe_calls, describe_checks


def part(name, seconds, compared=0, size=GroupSize.LARGE, names=()):
    return SimpleNamespace(
        name=name,
        group_size=size,
        graph=SimpleNamespace(ops=[SimpleNamespace(time_s=1.0)] * 2),
        cost=lambda number, binding: SimpleNamespace(kept_bytes=1000 * number, time_s=seconds),
        sizes=SimpleNamespace(
            names=names, in_words=lambda *all: f" at {', '.join(map(str, all))}" if all[0] else ""
        ),
        trust=SimpleNamespace(
            num_compared=compared, compared_at=[(k,) for k in range(8)], num_sizes_uncompared=2
        ),
    )


def test_a_line_for_each_call():
    parts = [part("part1", 2.0), part("part2", 3.0)]
    assert describe_calls(parts, {(0, 0): 1, (1, 0): 2, (1, 1): 2}) == [
        "  part1: keeps 1.00 kB (0.98 KiB), time +0.00%",
        "  part2, call 1 of 2: keeps 2.00 kB (1.95 KiB), time +50.00%",
        "  part2, call 2 of 2: keeps 2.00 kB (1.95 KiB), time +50.00%",
    ]


def test_the_sizes_that_were_planned_for_are_named():
    [line] = describe_calls([part("part1", 2.0)], {(0, 0): 1}, lambda key: (8, 128))
    assert line.endswith("+0.00% at (8, 128)")


def test_small_groups_are_told():
    [line] = describe_calls([part("step", 2.0, size=GroupSize.SMALL)], {(0, 0): 1})
    assert line.endswith("+0.00%, groups are small")


def test_what_was_compared_is_told():
    parts = [part("part1", 2.0, 1), part("part2", 2.0, 2)]
    assert describe_checks(parts[:0], "equal") == "  check          equal"
    told = describe_checks(parts, "equal", 4)
    assert "equal; then 3 times a new schedule with another; 4 times a step of the loop" in told


def test_the_sizes_at_which_schedules_were_compared_are_told():
    told = describe_checks([part("step", 2.0, 1, names=("s0",)), part("other", 2.0)], "equal")
    _, line = told.splitlines()
    assert "step: schedules were compared at (0,), (1,), (2,), (3,) and others" in line
    assert line.endswith("the same code ran at 2 sizes at which it was not")
