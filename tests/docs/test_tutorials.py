"""Tutorials: every command is run, and what the page shows is what comes out."""

import contextlib
import importlib.util
import io
import shlex
from pathlib import Path

import pytest
from tiers import slow_where

from schedsim.cli.app import run

DOCS = Path(__file__).parents[2] / "docs"


def module(name):
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


executed = module("executed")


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    slow_where(executed.TUTORIALS, lambda page: page.stem != "framework-author"),
    ids=lambda page: page.stem,
)
def test_a_tutorial_shows_what_comes_out(page, tmp_path, monkeypatch):
    """Each page's first command is a process of its own; later ones of schedsim share this one.

    Starting a process takes most commands longer than what they do.
    """
    process, started = executed.run, []
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "110")

    def here(command, folder):
        words = shlex.split(command)
        if words[0] != "schedsim" or not started:
            started.append(command)
            return process(command, folder)
        said = io.StringIO()
        streams = contextlib.redirect_stdout(said), contextlib.redirect_stderr(said)
        with contextlib.chdir(folder), streams[0], streams[1]:
            run(words[1:])
        return said.getvalue()

    monkeypatch.setattr(executed, "run", here)
    text = page.read_text()
    if "import torch" in text:
        pytest.importorskip("torch", reason="torch is not installed")
    count = 0
    for _, shown, real in executed.executed(text, tmp_path):
        assert executed.agrees(shown.output, real), f"$ {shown.command}\n{real}"
        count += 1
    assert count >= 5


def test_the_three_readers_have_one_each():
    assert [page.stem for page in executed.TUTORIALS] == [
        "framework-author",
        "out-of-memory",
        "researcher",
    ]


@pytest.mark.parametrize(
    ("shown", "real", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\nb\n", "a\nc\n", False),
        ("planned in 3 ms\n", "planned in 4.5 s\n", True),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\nd\n", "a\nb\nc\n", False),
        ("...\nc\n...\n", "a\nb\nc\nd\n", True),
        ("...\nx\n...\n", "a\nb\n", False),
        ("a\n...\na\n", "a\n", False),
        ("...\n", "error: it does not fit\n", False),
        ("a\n...\n", "a\nerror: no\nhint: b\n", False),
        ("a\nerror: no\n...\n", "a\nerror: no\nhint: b\n", True),
        ("optimal  10 ms\n", "optimal  99 us\n", True),
        ("optimal  10 ms\n", "feasible  10 ms\n", False),
    ],
)
def test_outputs_agree_but_for_times_of_planning(shown, real, same):
    assert executed.agrees(shown, real) == same
