"""A change that costs memory is told by the names of tensors."""

from __future__ import annotations

import pytest
from tiers import slow_where

pytest.importorskip("torch", reason="torch is not installed")

from peak_stories import STORIES
from schedsim.validation.memory_tests import HeldTensor, StepPeak, explain_difference, step_peak

from schedsim.units import parse_bytes

TOLD = {
    "logits kept twice": "`logits.mm` now kept for grad.logsumexp",
    "attention lost its fused kernel": "`layers.*.softmax` (4 tensors of 4.19 MB) now kept for",
    "compile undid checkpointing": "`layers.*.mm` (4 tensors of 524.3 kB) now kept for",
}


@pytest.mark.parametrize("story", slow_where(STORIES, lambda story: "compile" in story))
def test_three_stories_are_told_in_the_first_line(story):
    """Each before is quiet beside itself; each after is more, and its first line says why."""
    before, after = (step_peak(build) for build in STORIES[story])
    assert explain_difference(before, step_peak(STORIES[story][0])) == []
    assert after > before
    assert TOLD[story] in explain_difference(before, after)[0]


def peak(*tensors):
    held = tuple(HeldTensor(*one) for one in tensors)
    return StepPeak("m", sum(one.size_bytes for one in held), "op", held)


def bytes_of(line):
    number, unit = line.split(":")[0].split(" ")
    sign = -1 if number[0] == "-" else 1
    return sign * parse_bytes(f"{number[1:]}{unit}")


def test_the_lines_add_up():
    """New, gone, larger, smaller, of another role, of one name twice, and more than are shown."""
    old = peak(
        ("a", 100, "kept", "grad.a"),
        ("b", 70, "working"),
        ("w", 10, "static"),
        ("b", 3, "kept"),
        *((f"old{i}.x", i, "kept", "grad.y") for i in range(1, 8)),
    )
    new = peak(
        ("a", 150, "kept", "grad.a"),
        ("w", 9, "static"),
        ("c", 40, "kept"),
        ("b", 70, "kept"),
        *((f"new.{i}.x", 2, "gradient") for i in range(1, 8)),
    )
    lines = explain_difference(old, new)
    assert sum(map(bytes_of, lines)) == new.total_bytes - old.total_bytes
    assert lines[0] == "+50 B: `a` was 100 B (kept)"
    assert "+40 B: `c` now kept, though no backward reads it" in lines
    assert "+14 B: `new.*.x` (7 tensors of 2 B) now there at the peak" in lines
    assert lines[-1].endswith("other tensors")
