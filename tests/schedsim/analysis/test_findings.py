"""Findings hold where they are said, with the numbers they rest on, and nowhere else."""

from __future__ import annotations

import pytest
from four_stages import CHAIN

import schedsim
from schedsim import Chain, Graph, Op, Schedule, Stage, explain


def runs(text: str) -> Schedule:
    """The schedule of the op names in `text`."""
    return Schedule.from_names(text.split())


RECOMPUTED = Schedule.from_names(
    ["F0", "F1", "F2", "F3", "loss", "B3", "F1", "F2", "B2", "B1", "F0", "B0"]
)


def codes(workload: Chain | Graph, schedule: Schedule | None = None) -> set[str]:
    return {finding.code for finding in explain(workload, schedule).findings}


def test_findings_of_what_people_ask():
    """Checkpointing that changes nothing, resident state, the loss, wasted repeats, the floor."""
    last = runs("F0 F1 F2 F3 loss F3 B3 B2 B1 B0")
    found = codes(CHAIN, last)
    assert {"unchanged", "wasted"} <= found
    assert "unchanged" not in codes(CHAIN, RECOMPUTED)
    assert "store-all" in codes(CHAIN)
    assert "loss" in codes(CHAIN)
    resident = Chain("s", 4, CHAIN.stages, static_bytes=10_000)
    assert "static" in codes(resident)
    assert "static" not in codes(CHAIN)
    one = Chain("one", 1, (schedsim.Stage("a", 1, 1, 1, 100),))
    assert "floor" in codes(one)
    rebuilt = Schedule.from_names(
        ["F0", "F1", "F2", "F3", "loss", "F0", "F1", "F2", "F3", "B3", "B2", "B1", "B0"]
    )
    assert "working-set" in codes(CHAIN, rebuilt)


def said(workload: Chain | Graph, schedule: Schedule | None = None) -> dict[str, str]:
    return {finding.code: finding.text for finding in explain(workload, schedule).findings}


def test_numbers_of_the_findings_by_hand():
    """Store-all needs 92 bytes: 20 of each stage, the input and the gradients of two outputs.

    B3 reads its bundle (20), its input and gradient (4 and 4), and writes a gradient of 4. Running
    F3 again before B3 costs 1 s and lowers nothing.
    """
    found = said(CHAIN, runs("F0 F1 F2 F3 loss F3 B3 B2 B1 B0"))
    assert found["unchanged"] == (
        "recomputing 1 runs for 1 s does not change the peak: 92 B beside 92 B of store-all"
    )
    assert found["wasted"].startswith("one repeat lowers the peak by less than 0.1 % each")
    assert found["wasted"].endswith("not repeating F3 alone saves 1 s for 0 B")
    assert found["loss"].startswith("the peak is at the loss (B3)")
    everything = said(CHAIN)["store-all"]
    # F0 run again before B1: neither its output nor its bundle, 20 bytes, is there at the peak.
    assert "repeating F0 for 1 s would lower the peak by 20 B" in everything


def test_what_always_is_there_is_said_from_three_tenths_on():
    """With 92 bytes that move, 40 static bytes are 30.3 % of 132, and 39 are 29.8 % of 131."""
    assert said(Chain("s", 4, CHAIN.stages, static_bytes=40))["static"].startswith(
        "30 % of the peak (40 B)"
    )
    assert "static" not in said(Chain("s", 4, CHAIN.stages, static_bytes=39))


def test_the_op_that_no_schedule_goes_below():
    """g reads 6, writes 2 and works with 12: 20 of 20 bytes."""
    ops = (
        Op("f", writes={"x": 6}),
        Op("g", reads=("x",), writes={"y": 2}, workspace_bytes=12),
        Op("b", "backward", reads=("y",)),
    )
    assert said(Graph("g", ops, static_bytes=5))["floor"].startswith(
        "g alone takes 20 B of the 20 B above the resident bytes"
    )


@pytest.mark.parametrize("static_bytes", [0, 7])
def test_a_step_without_bytes_of_its_own_is_blamed_for_none(static_bytes):
    """Nothing moves: no op takes half of it, and no recomputation has rebuilt it."""
    chain = Chain("none", 0, (Stage("a", 1, 1, 0, 0), Stage("b", 1, 1, 0, 0)), static_bytes)
    for schedule in (None, runs("F0 F1 loss F1 B1 B0")):
        found = set(said(chain, schedule))
        assert not found & {"floor", "working-set"}
        assert ("static" in found) == bool(static_bytes)
