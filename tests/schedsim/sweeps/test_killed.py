"""A sweep killed at any moment ends with the same bytes as one that nobody disturbed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import schedsim
from schedsim.files.document import save
from schedsim.sweeps import read_rows

# Runs of exact planners, of a search with counted moves and seeds, of planners that find nothing,
# and of one that fails.
EXPERIMENT = """
workloads = ["graph.json", {preset = "gpt2", layers = 4, batch = 1}]
budgets = ["20%", "8GB"]
planners = ["rotor", "periodic", "dtr",
            {name = "rotor", num_slots = 0},
            {name = "local_search", max_moves = 500}]
seeds = [0, 1]
time_limit_s = 600
"""

# The sweep kills itself at a counted write, as the system would: a kill from outside at a measured
# time meets a running sweep on one machine, and one that has ended on a faster machine.
KILLED = textwrap.dedent(
    """
    import os, signal, sys

    from schedsim.cli import main
    from schedsim.sweeps import results

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def kill_at(num_rows, num_bytes):
        written = results.write_whole
        count = -1

        def write(handle, data):
            nonlocal count
            count += data.startswith(b'{"schema":"schedsim.result')
            if count == num_rows:
                written(handle, data[:num_bytes])
                die()
            written(handle, data)

        results.write_whole = write

    if __name__ == "__main__":
        moment = sys.argv.pop(1)
        if moment == "rename":
            os.replace = lambda *paths: die()
        else:
            kill_at(*map(int, moment.split(",")))
        main()
    """
)
MOMENTS = [
    ("3,40", 1),  # within a row
    ("5,0", 2),  # between two rows, while two processes run
    ("1,1000000", 1),  # a row is whole, and what follows it is not done
    ("rename", 1),  # all rows are there, and their order is not yet
]


def graph() -> schedsim.Graph:
    """A training step of 12 equal layers as a graph of 25 ops."""
    arrays = {"forward_s": [1] * 12, "backward_s": [2] * 12, "output_bytes": [4] * 12}
    return schedsim.Chain.from_arrays("line", 4, **arrays, saved_bytes=[12] * 12).graph


def sweep(folder: Path, name: str, jobs: int, *, kill: str | None = None) -> int:
    """The exit code of a sweep, which is killed at `kill`."""
    program = ["-m", "schedsim"] if kill is None else ["killed.py", kill]
    arguments = ["sweep", "e.toml", "-o", name, "--jobs", str(jobs)]
    with (folder / "stderr").open("ab") as errors:
        done = subprocess.run(
            [sys.executable, *program, *arguments], cwd=folder, stdout=errors, stderr=errors
        )
    return done.returncode


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a POSIX system")
def test_killed_again_and_again_the_file_is_the_same(tmp_path):
    """Kills: within a row, between two rows, before the rows get their order.

    Only the first process is killed, as the system does it; those that it started must not go on
    writing, and must end by themselves.
    """
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    (tmp_path / "killed.py").write_text(KILLED)
    save(graph(), tmp_path / "graph.json")
    assert sweep(tmp_path, "whole.jsonl", 1) == 1  # rotor fails without slots
    whole = (tmp_path / "whole.jsonl").read_bytes()
    rows = read_rows(tmp_path / "whole.jsonl")
    assert {row["status"] for row in rows} == {"optimal", "feasible", "infeasible", "error"}
    assert all(row["reproducible"] for row in rows)

    path = tmp_path / "killed.jsonl"
    before = b""
    for moment, jobs in MOMENTS:
        if moment == "rename":  # rows in order would need no rename
            lines = before.splitlines(keepends=True)
            before = b"".join(lines[1:] + lines[:1])
            path.write_bytes(before)
        assert sweep(tmp_path, path.name, jobs, kill=moment) == -signal.SIGKILL
        after = path.read_bytes()
        # What was there stays: only runs in flight are lost.
        assert after.startswith(before[: before.rfind(b"\n") + 1])
        assert after.endswith(b"\n") == (moment != "3,40") or not after
        before = after

    assert len(read_rows(path)) == len(rows)
    assert sweep(tmp_path, path.name, 2) == 1
    assert path.read_bytes() == whole
    keys = [row["key"] for row in read_rows(path)]
    assert len(set(keys)) == len(keys) == len(rows)
