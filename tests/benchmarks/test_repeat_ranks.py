"""Repeated runs of tests that start ranks: they add up over calls, and none is forgotten."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.repeat_ranks import (
    CUT_SHORT,
    RankRun,
    files_that_start_ranks,
    read_runs,
    table,
    without_number,
)

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "repeat_ranks.py"
TESTS = """
import sys, types
import pytest

class _Worker:
    def begin(self, *call): pass

ranks = sys.modules["rank_processes"] = types.ModuleType("rank_processes")
ranks._Worker = _Worker

@pytest.mark.parametrize("way", ["block", "op"])
def test_starts(way): ranks._Worker().begin()

def test_alone(): pass

@pytest.mark.slow
def test_slow(): ranks._Worker().begin(); assert False, "what it left"
"""


def repeat(folder, *words):
    """Run the script on the tests above."""
    (folder / "test_some.py").write_text(TESTS)
    command = [sys.executable, str(SCRIPT), "--burners", "0", "--results", "runs.jsonl", *words]
    return subprocess.run(
        [*command, str(folder / "test_some.py")],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_rounds_add_up_over_calls(tmp_path):
    """What ran is not run again, and a test without ranks only once."""
    results = tmp_path / "runs.jsonl"
    first = repeat(tmp_path, "--tier", "fast", "--times", "1")
    assert first.returncode == 0, first.stdout
    runs = read_runs(results)
    assert sorted((run.test.rpartition("::")[2], run.num_processes) for run in runs) == [
        ("test_alone", 0),
        ("test_starts[block]", 1),
        ("test_starts[op]", 1),
    ]
    again = repeat(tmp_path, "--tier", "fast", "--times", "3")
    assert again.returncode == 0, again.stdout
    names = [run.test.rpartition("::")[2] for run in read_runs(results)]
    assert names[3:] == ["test_starts[block]", "test_starts[op]"] * 2
    slow = repeat(tmp_path, "--tier", "slow", "--times", "1")
    assert slow.returncode == 1, slow.stdout
    assert read_runs(results)[-1].outcome == "failed"
    assert "what it left" in next(tmp_path.glob("failed-*")).read_text()


@pytest.mark.slow
def test_a_call_that_died_is_in_the_results(tmp_path):
    """The test that ran then is not forgotten, and runs again."""
    (tmp_path / "runs.begun").write_text("tests/test_some.py::test_starts[op]")
    assert repeat(tmp_path, "--tier", "fast", "--times", "1").returncode == 0
    found = read_runs(tmp_path / "runs.jsonl")
    assert (found[0].test, found[0].outcome) == ("tests/test_some.py::test_starts[op]", CUT_SHORT)
    assert sum("test_starts[op]" in run.test for run in found) == 2
    assert not (tmp_path / "runs.begun").exists()


def test_names_without_the_number_of_a_repeat():
    for number in (0, 12):
        assert without_number(f"t.py::test_a[repeat{number}]") == "t.py::test_a"
        assert without_number(f"t.py::test_a[repeat{number}-x]") == "t.py::test_a[x]"
        assert without_number(f"t.py::test_a[x-repeat{number}]") == "t.py::test_a[x]"
    assert without_number("t.py::test_a[repeat-x]") == "t.py::test_a[repeat-x]"


def test_every_file_that_starts_ranks_is_found():
    found = files_that_start_ranks()
    assert "tests/validation/ranks/test_sharded_ops.py" in found
    assert "tests/validation/ways/test_accumulate.py" in found
    assert not any("repeat_ranks" in path for path in found)


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    path = tmp_path / "runs.jsonl"
    line = json.dumps(
        {
            "test": "a",
            "outcome": "passed",
            "seconds": 1.0,
            "load": 2.0,
            "num_processes": 2,
            "commit": "c",
        }
    )
    path.write_text(f"{line}\n{line[:20]}")
    assert read_runs(path) == [RankRun("a", "passed", 1.0, 2.0, 2, "c")]


def test_the_table_counts_each_test():
    runs = [
        RankRun("tests/a", "passed", 1.0, 2.0, 2, "c"),
        RankRun("tests/a", "failed", 3.0, 2.0, 2, "c"),
        RankRun("tests/b", CUT_SHORT, 0.0, 0.0, 0, "c"),
        RankRun("tests/alone", "passed", 1.0, 2.0, 0, "c"),
    ]
    lines = table(runs).splitlines()
    assert "3 runs of 2 tests: 1 passed, 1 failed, 1 cut short" in table(runs)
    assert "| `a` | 2 | 1 | 1 | 0 | 2.0 | 3.0 | 2.0 |" in lines
    assert "| `b` | 1 | 0 | 0 | 1 | | | |" in lines
    assert not any("alone" in line for line in lines)
