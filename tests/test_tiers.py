"""The slow tier: what runs with and without ``--slow``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import SLOW, examples, slow_where

CONFTEST = Path(__file__).parent / "conftest.py"

TESTS = """
import pytest
from tiers import examples, slow_where

@pytest.mark.slow
def test_long(): pass

@pytest.mark.parametrize("number", slow_where([1, 2, 3], lambda number: number > 1))
def test_some(number): pass

def test_examples(): assert examples(60) == 7
"""


def test_examples_are_an_eighth_and_at_least_five(monkeypatch):
    monkeypatch.delenv(SLOW, raising=False)
    assert [examples(number) for number in (3, 8, 30, 200)] == [3, 5, 5, 25]
    monkeypatch.setenv(SLOW, "1")
    assert [examples(number) for number in (3, 8, 30, 200)] == [3, 8, 30, 200]


def test_cases_are_marked_one_by_one():
    """Cases of several arguments too."""
    one, two = slow_where([("a", 1), ("b", 2)], lambda case: case[1] == 2)
    assert (one.values, two.values) == (("a", 1), ("b", 2))
    assert (len(one.marks), [mark.name for mark in two.marks]) == (0, ["slow"])


@pytest.mark.parametrize(
    ("arguments", "outcome"),
    [
        ([], "2 passed, 3 deselected"),
        (["--slow"], "1 failed, 4 passed"),  # all examples, which the test denies
        (["-m", "slow"], "3 passed, 2 deselected"),
        (["test_them.py::test_long"], "1 passed"),
    ],
)
def test_what_runs(tmp_path, arguments, outcome):
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_them.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow: x\n")
    environment = {name: value for name, value in os.environ.items() if name != SLOW}
    environment |= {"PYTHONPATH": str(CONFTEST.parent / "helpers")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert outcome in done.stdout
