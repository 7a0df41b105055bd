"""A sweep killed at random moments ends with the same bytes as one that nobody disturbed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import schedsim
from schedsim.files.document import save
from schedsim.sweeps import read_rows

NUM_KILLS = 4
# 67 runs of some milliseconds each, of exact planners, of a search with counted moves and seeds,
# of planners that find nothing, and of one that fails. The slower ones, of the graph, come first:
# the kills meet them.
EXPERIMENT = """
workloads = ["graph.json", {preset = "gpt2", layers = 4, batch = [1, 2, 4]}]
budgets = ["20%", "50%", "8GB"]
planners = ["auto", "rotor", "periodic", "chen_sqrt", "bisection", "dtr",
            {name = "rotor", num_slots = 0},
            {name = "local_search", max_moves = 500}]
seeds = [0, 1]
time_limit_s = 600
"""


def graph() -> schedsim.Graph:
    """A training step of 12 equal layers as a graph of 25 ops."""
    arrays = {"forward_s": [1] * 12, "backward_s": [2] * 12, "output_bytes": [4] * 12}
    return schedsim.Chain.from_arrays("line", 4, **arrays, saved_bytes=[12] * 12).graph


def start(folder: Path, name: str, jobs: int) -> subprocess.Popen[bytes]:
    """The sweep, in a process group of its own."""
    command = [sys.executable, "-m", "schedsim", "sweep", "e.toml", "-o", name, "--jobs", str(jobs)]
    with (folder / "stderr").open("ab") as errors:
        return subprocess.Popen(
            command, cwd=folder, stdout=errors, stderr=errors, start_new_session=True
        )


def size(path: Path) -> int:
    """Bytes of a file that may not be there yet."""
    return path.stat().st_size if path.exists() else 0


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a POSIX system")
def test_killed_again_and_again_the_file_is_the_same(tmp_path):
    """Every kill meets a running sweep: at its start, between two rows or within a row.

    Only the first process is killed, as the system does it; those that it started must not go on
    writing, and must end by themselves.
    """
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    save(graph(), tmp_path / "graph.json")
    assert start(tmp_path, "whole.jsonl", 1).wait() == 1  # rotor fails without slots
    whole = (tmp_path / "whole.jsonl").read_bytes()
    rows = read_rows(tmp_path / "whole.jsonl")
    assert {row["status"] for row in rows} == {"optimal", "feasible", "infeasible", "error"}
    assert all(row["reproducible"] for row in rows)

    chance = random.Random(0)
    path = tmp_path / "killed.jsonl"
    torn = 0
    for kill in range(NUM_KILLS):
        before, process = size(path), start(tmp_path, path.name, 2 if kill == 1 else 1)
        if kill == 3:
            time.sleep(chance.uniform(0.0, 1.5))  # perhaps before the first row
        else:
            # At most half of the file, so that every kill comes long before the end.
            until = len(whole) * (kill + chance.random()) / (2 * NUM_KILLS)
            while size(path) <= until and process.poll() is None:
                time.sleep(0.0005)
            time.sleep(chance.uniform(0.0, 0.05))
        assert process.poll() is None, "it ended before it was killed"
        process.send_signal(signal.SIGKILL)
        process.wait()
        after = path.read_bytes() if path.exists() else b""
        torn += not after.endswith(b"\n") and bool(after)
        if kill == 2:  # what a kill within a write leaves, which is too rare to wait for
            path.write_bytes(after + whole[:100])
        # What was there stays: only runs in flight are lost.
        assert size(path) >= before - 100

    assert len(read_rows(path)) < len(rows)
    assert start(tmp_path, path.name, 2).wait() == 1
    assert path.read_bytes() == whole
    keys = [row["key"] for row in read_rows(path)]
    assert len(set(keys)) == len(keys) == len(rows)
