"""``schedsim simulate``: replay, check, and say what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from four_stages import CHAIN
from offloaded_stages import offloaded

from schedsim import Schedule, simulate
from schedsim.cli.app import run
from schedsim.files.document import save


@pytest.fixture
def chain_file(tmp_path) -> str:
    file = tmp_path / "chain.json"
    save(CHAIN, file)
    return str(file)


@pytest.fixture
def call(capsys):
    """Run the command line: (exit code, stdout, stderr)."""

    def invoke(*arguments: str) -> tuple[int, str, str]:
        code = run(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return invoke


def test_plan_then_simulate(call, chain_file, tmp_path):
    """The plan's file replays to what it says; another workload is refused with exit 1."""
    file = str(tmp_path / "plan.json")
    assert call("plan", chain_file, "--mem", "60", "-o", file)[0] == 0
    code, out, _ = call("simulate", chain_file, file, "--json")
    assert code == 0
    assert json.loads(out)["peak_bytes"] == json.loads(Path(file).read_text())["peak_bytes"]
    code, _, err = call("simulate", "--layers", "4", file)
    assert code == 1
    assert "another workload" in err


def test_a_plan_that_lies_is_caught(call, chain_file, tmp_path):
    """A changed peak in the file does not pass the replay."""
    file = tmp_path / "plan.json"
    call("plan", chain_file, "--mem", "60", "-o", str(file))
    document = json.loads(file.read_text())
    document["peak_bytes"] -= 1
    file.write_text(json.dumps(document))
    code, _, err = call("simulate", chain_file, str(file))
    assert code == 1
    assert "the plan says peak" in err


def test_a_schedule_from_a_file(call, chain_file, tmp_path):
    """Op names replay; an illegal one is exit 1 with its place; over --mem is exit 1."""
    names = tmp_path / "names.txt"
    names.write_text("F0 F1 F2 F3 loss B3 B2 B1 B0")
    assert call("simulate", chain_file, "--schedule", str(names))[0] == 0
    assert call("simulate", chain_file, "--schedule", str(names), "--mem", "50")[0] == 1
    names.write_text("F0 F2")
    code, _, err = call("simulate", chain_file, "--schedule", str(names))
    assert code == 1
    assert "schedule[1]" in err


def test_the_document_has_the_numbers_of_the_simulation(call, tmp_path):
    """The document of a step on three streams: shares, reasons to stand idle, and pools."""
    graph, schedule = offloaded("F0 d2h:r1 F1 loss B1 h2d:r1 B0")
    save(graph, tmp_path / "graph.json")
    (tmp_path / "runs.txt").write_text(" ".join(schedule.names))
    line = ["simulate", str(tmp_path / "graph.json"), "--schedule", str(tmp_path / "runs.txt")]
    code, out, _ = call(*line, "--capacity", "device=26", "--json")
    document = json.loads(out)
    expected = simulate(graph, schedule, {"device": 26})
    assert code == 0
    assert document["makespan_s"] == expected.makespan_s
    assert document["peak_by_category"] == expected.by_category()
    streams = {row["name"]: row for row in document["streams"]}
    assert streams["compute"]["busy_s"] == expected.busy_s["compute"]
    assert streams["compute"]["busy_share"] == expected.busy_s["compute"] / expected.makespan_s
    for row in streams.values():
        spent = row["busy_s"] + sum(row["idle_s"].values())
        assert spent == pytest.approx(expected.makespan_s)
    assert sum(document["critical_s"].values()) == pytest.approx(expected.makespan_s)
    pools = {row["name"]: (row["peak_bytes"], row["capacity_bytes"]) for row in document["pools"]}
    assert pools == {"device": (26, 26), "host": (6, None)}
    code, out, _ = call(*line, "--capacity", "device=26")
    assert "for memory" in out
    assert "critical path" in out
    assert "7, 0 recomputed, 2 copies" in out


def test_what_is_alive_at_the_peak_is_named(call, chain_file):
    """The eight largest, with the runs over which they live."""
    _, out, _ = call("simulate", chain_file)
    rows = out.split("alive at the peak\n")[1].splitlines()
    assert rows[0].split() == ["tensor", "category", "size", "alive", "in", "runs"]
    assert len(rows) == 1 + 8
    assert rows[1].split() == ["r1", "saved", "16", "B", "0..8"]
    assert "largest of the 11 tensors" in out


def test_no_op_names_and_an_illegal_name(call, chain_file, tmp_path):
    """The file and the place are said."""
    names = tmp_path / "names.txt"
    names.write_text("  ")
    code, _, err = call("simulate", chain_file, "--schedule", str(names))
    assert code == 2
    assert "no op names" in err
    names.write_text("F0 F9")
    code, _, err = call("simulate", chain_file, "--schedule", str(names))
    assert code == 1
    assert "schedule[1]: unknown op 'F9'" in err


def test_a_trace_and_a_document_are_written(call, chain_file, tmp_path):
    """By the name of the file; the document is the one that is printed."""
    trace, file = tmp_path / "trace.json.gz", tmp_path / "found.json"
    code, _, err = call("simulate", chain_file, "-o", str(trace))
    assert (code, trace.read_bytes()[:2]) == (0, b"\x1f\x8b")
    assert "ui.perfetto.dev" in err
    code, out, _ = call("simulate", chain_file, "--json", "-o", str(file), "--mem", "91")
    assert code == 1
    assert json.loads(out) == json.loads(file.read_text())
    (problem,) = json.loads(out)["problems"]
    assert problem == "the peak is 1 B over the budget of 91 B"
    assert simulate(CHAIN, Schedule.store_all(CHAIN)).peak_bytes == 92
