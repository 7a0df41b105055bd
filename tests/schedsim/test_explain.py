"""Single changes are legal and cost what is said; the findings fit the schedules they speak of."""

from __future__ import annotations

import json

import numpy as np
import pytest
from chains import random_chain
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

import schedsim
from schedsim import Chain, Graph, InvalidScheduleError, Op, Schedule, explain, simulate
from schedsim.analysis.edits import ScheduleEditor
from schedsim.cli.app import run

CHAIN = Chain.from_arrays(
    "four", 4, forward_s=[1] * 4, backward_s=[2] * 4, output_bytes=[4] * 4, saved_bytes=[20] * 4
)


def runs(text: str) -> Schedule:
    """The schedule of the op names in `text`."""
    return Schedule.from_names(text.split())


RECOMPUTED = Schedule.from_names(
    ["F0", "F1", "F2", "F3", "loss", "B3", "F1", "F2", "B2", "B1", "F0", "B0"]
)


def legal(workload: Chain | Graph, names: list[str]) -> schedsim.Simulation | None:
    try:
        return simulate(workload, Schedule.from_names(names))
    except InvalidScheduleError:
        return None


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 10**6))
def test_the_best_single_recomputation_is_the_best_of_all_insertions(seed):
    """On chains, against every way to run one forward once more."""
    rng = np.random.default_rng(seed)
    chain = random_chain(rng, int(rng.integers(1, 6)))
    names = list(chain.op_names)
    peaks = [
        found.peak_bytes
        for op in names[: chain.num_stages]
        for at in range(len(names) + 1)
        if (found := legal(chain, [*names[:at], op, *names[at:]])) is not None
    ]
    explanation = explain(chain)
    ours = [c.peak_bytes for c in explanation.recompute if c.num_runs_change == 1]
    best = min(peaks)
    if best < explanation.simulation.peak_bytes:
        assert min(ours) == best
    else:
        assert not ours


def test_keeping_drops_what_only_served_the_repeat():
    """f is run again for g alone: not repeating g drops both, not repeating f drops f."""
    ops = (
        Op("f", writes={"y": 8}),
        Op("g", reads=("y",), writes={"z": 4}),
        Op("b", "backward", reads=("z",)),
    )
    graph = Graph("g", ops)
    schedule = runs("f g f g b")
    assert ScheduleEditor(graph, schedule).keep_instead([3]).names == ["f", "g", "b"]
    assert ScheduleEditor(graph, schedule).keep_instead([2]).names == ["f", "g", "g", "b"]
    with pytest.raises(ValueError, match="first run"):
        ScheduleEditor(graph, schedule).keep_instead([0])


def test_useless_repeats_that_were_there_stay():
    """A change is charged with what it changes alone."""
    schedule = Schedule.from_names(
        ["F0", "F0", "F1", "F2", "F3", "loss", "B3", "F1", "F2", "B2", "B1", "B0"]
    )
    kept = ScheduleEditor(CHAIN.graph, schedule).keep_instead([8]).names
    assert kept == runs("F0 F0 F1 F2 F3 loss B3 F1 B2 B1 B0").names


def test_ops_that_run_once_are_not_run_again():
    """Their outputs have no price."""
    graph = Graph(
        "g",
        (
            Op("f", writes={"x": 8}, once=True),
            Op("g", reads=(), writes={"y": 4}),
            Op("b", "backward", reads=("x", "y")),
        ),
    )
    assert ScheduleEditor(graph, Schedule.store_all(graph)).recompute_instead(["x"], 1) is None


def test_what_is_alive_says_who_waits_for_it():
    """The bundle of the first stage waits for its backward, or for its recomputation."""
    alive = {tensor.name: tensor for tensor in explain(CHAIN).alive}
    assert (alive["r1"].written_op, alive["r1"].next_op) == ("F0", "B0")
    assert (alive["a0"].written_op, alive["a0"].written_run) == ("input", -1)
    alive = {tensor.name: tensor for tensor in explain(CHAIN, RECOMPUTED).alive}
    assert alive["a1"].next_op in ("F1", "B1")
    assert alive["a0"].next_op == "F0"


def test_the_floor_holds_for_every_schedule():
    """No planner goes below it."""
    explanation = explain(CHAIN)
    least = min(point.budget_bytes for point in schedsim.pareto(CHAIN).points)
    assert explanation.floor_bytes <= least


def test_on_the_command_line(tmp_path, capsys, monkeypatch):
    """Text for people, one document with --json, the same document in a file."""
    monkeypatch.chdir(tmp_path)
    schedsim.save(CHAIN, "chain.json")
    schedsim.save(schedsim.plan(CHAIN, 60), "plan.json")
    assert run(["explain", "chain.json", "plan.json"]) == 0
    text = capsys.readouterr().out
    assert "alive at the peak" in text
    assert "what the peak would lose" in text
    assert run(["explain", "chain.json", "plan.json", "--json", "-o", "out.json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads((tmp_path / "out.json").read_text())
    assert document["schema"] == "schedsim.explanation/1"
    assert document["peak_bytes"] <= 60
    run(["plan", "chain.json", "--mem", "10", "-o", "none.json"])
    capsys.readouterr()
    assert run(["explain", "chain.json", "none.json"]) == 1
    assert "least budget" in capsys.readouterr().err
