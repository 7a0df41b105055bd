"""Snapshots of memory on the command line."""

from __future__ import annotations

import json
from itertools import combinations

import pytest
from command_line import commands, options
from option_samples import SAMPLES
from snapshot_files import FORWARD, MIB, document, event, small, written

from schedsim.cli.app import run
from schedsim.snapshots import examine, read_snapshot


def test_the_command(tmp_path, capsys):
    """A table for people, one document for programs."""
    path = str(small(tmp_path))
    assert run(["explain", path, "--alloc-conf", "expandable_segments:True"]) == 0
    out = capsys.readouterr().out
    assert "net.py:7 forward" in out
    assert "expandable_segments:True" in out
    assert run(["explain", path, "--json"]) == 0
    assert '"schema": "schedsim.snapshot-findings/1"' in capsys.readouterr().out
    assert run(["explain", path, "--layers", "3"]) == 2
    assert "is explained alone" in capsys.readouterr().err
    assert run(["explain", "--layers", "3", "--alloc-conf", "x:1"]) == 2


def test_simulate_replays_a_snapshot(tmp_path, capsys):
    """Under the allocator and settings that are named."""
    path = str(small(tmp_path))
    assert run(["simulate", path, "--allocator", "cuda-caching"]) == 0
    assert "reserved" in capsys.readouterr().out
    assert run(["simulate", path]) == 2
    assert "--allocator" in capsys.readouterr().err


def test_the_numbers_are_those_of_the_findings(tmp_path, capsys):
    """In the text, in the document and in the file; --top cuts off the smaller places."""
    path = small(tmp_path)
    findings = examine(read_snapshot(path))
    file = tmp_path / "found.json"
    assert run(["explain", str(path), "--json", "-o", str(file)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads(file.read_text()) == json.loads(json.dumps(findings.to_dict()))
    assert run(["explain", str(path), "--top", "1"]) == 0
    out = capsys.readouterr().out
    assert "4.50 kB (4.39 KiB) asked for, after event 2 of 4" in out
    assert "net.py:7 forward" in out
    assert "_init_group" not in out
    assert "the 3 blocks alive at the peak" in out
    assert "no setting tried would reserve much less" in out


def test_a_setting_that_helps_is_advised(tmp_path, capsys):
    """30 and then 44 MiB of one thing at a time: growing segments reserve 60 instead of 74."""
    events = [
        event("alloc", 0, 30 * MIB, FORWARD),
        event("free_completed", 0, 30 * MIB),
        event("alloc", 64 * MIB, 44 * MIB, FORWARD),
        event("free_completed", 64 * MIB, 44 * MIB),
    ]
    left = [(0, 30 * MIB, []), (64 * MIB, 44 * MIB, [])]
    path = written(tmp_path, document(left, events))
    assert run(["explain", str(path)]) == 0
    out = capsys.readouterr().out
    assert "PYTORCH_ALLOC_CONF=expandable_segments:True would reserve 18.9 % less" in out


@pytest.mark.parametrize("returned", [False, True])
def test_memory_that_the_run_gave_back_is_told(tmp_path, capsys, returned):
    """30 MiB, then 44; the run reserved 44 if the 30 went back to the device, as replays do not."""
    events = [
        event("segment_alloc", 0, 30 * MIB),
        event("alloc", 0, 30 * MIB, FORWARD),
        event("free_completed", 0, 30 * MIB),
        event("segment_free", 0, 30 * MIB),
        event("segment_alloc", 64 * MIB, 44 * MIB),
        event("alloc", 64 * MIB, 44 * MIB, FORWARD),
        event("free_completed", 64 * MIB, 44 * MIB),
    ]
    left = [(64 * MIB, 44 * MIB, [])]
    if not returned:
        del events[3]
        left.insert(0, (0, 30 * MIB, []))
    assert run(["explain", str(written(tmp_path, document(left, events)))]) == 0
    assert ("the run itself reserved 46.14 MB" in capsys.readouterr().out) == returned


def test_a_replay_beside_what_was_recorded(tmp_path, capsys):
    """The model's bytes, and the record's own; nothing else may stand beside a snapshot."""
    path, file = str(small(tmp_path)), tmp_path / "replay.json"
    line = ["simulate", path, "--allocator", "cuda-caching", "--json", "-o", str(file)]
    assert run(line) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads(file.read_text())
    assert document["recorded_reserved_bytes"] == 2 * MIB
    assert document["peak_reserved_bytes"] == 2 * MIB
    assert document["requested_bytes"] == 4500
    for other in (["--mem", "1GB"], ["--layers", "3"], ["--schedule", "x"]):
        assert run(["simulate", path, *other]) == 2
        assert "replayed alone" in capsys.readouterr().err


OF_SNAPSHOTS = {
    "simulate": {
        "--allocator": ("cuda-caching",),
        "--alloc-conf": ("expandable_segments:True",),
        "--json": (),
        "-o": ("out.json",),
    },
    "explain": {
        "--alloc-conf": ("expandable_segments:True",),
        "--top": ("1",),
        "--json": (),
        "-o": ("out.json",),
    },
}
"""What is honoured beside a snapshot; all other options of the command are refused."""


@pytest.mark.parametrize("command", OF_SNAPSHOTS)
def test_every_pair_beside_a_snapshot_is_honoured_or_refused(
    command, tmp_path, monkeypatch, capsys
):
    """With either option of a pair left out, the output or the file differs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.json").write_text("{}")
    path = str(small(tmp_path).relative_to(tmp_path))
    honoured = OF_SNAPSHOTS[command]
    always = {"--allocator": honoured["--allocator"]} if command == "simulate" else {}

    def see(given: dict[str, tuple[str, ...]]) -> tuple[object, ...]:
        line = [command, path]
        for name, values in {**always, **given}.items():
            line += [name, *values]
        code, out = run(line), capsys.readouterr()
        file = tmp_path / "out.json"
        written_text = file.read_text() if file.exists() else None
        file.unlink(missing_ok=True)
        return code, out.out, out.err, written_text

    flags = options(commands()[command])
    for name in set(flags) - set(honoured) - {"files"}:
        for other in ("--json", "-o", "--alloc-conf"):
            given = {name: SAMPLES[command][name].values, other: honoured[other]}
            assert see(given)[0] == 2, (name, other)
    for pair in combinations([name for name in honoured if name not in always], 2):
        given = {name: honoured[name] for name in pair}
        both = see(given)
        if set(pair) == {"--top", "--json"}:
            assert both[0] == 2
            continue
        assert both[0] == 0, (pair, both[2])
        for one in pair:
            rest = {name: values for name, values in given.items() if name != one}
            assert see(rest) != both, (pair, one)


def test_a_replay_writes_no_trace(tmp_path, capsys):
    """Requests have no times: a file by the name of a trace would be none."""
    line = ["simulate", str(small(tmp_path)), "--allocator", "cuda-caching", "-o", "a.json.gz"]
    assert run(line) == 2
    assert "have no times" in capsys.readouterr().err
