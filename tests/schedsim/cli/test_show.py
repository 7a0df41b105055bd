"""How results look: columns in a pipe, tables and progress on a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
import time

import pytest

from schedsim.cli import show
from schedsim.cli.show import percent, print_facts, print_json, print_table, working
from schedsim.plans.progress import current, searching


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """What the command line writes where all its streams are a terminal."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "schedsim", *arguments]
    kept = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    settings = {**kept, "TERM": "xterm", "COLUMNS": "80", **environment}
    process = subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, env=settings
    )
    os.close(follower)
    parts = []
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # Linux's word for the end of a pseudo-terminal
            break
        if not part:
            break
        parts.append(part)
    os.close(leader)
    assert process.wait() == 0
    return b"".join(parts).decode().replace("\r\n", "\n")


def test_tables_on_a_terminal():
    """Bold heads; every name whole in 80 columns."""
    text = on_a_terminal("planners")
    assert "\x1b[1m" in text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert all(len(line) <= 80 for line in plain.splitlines())
    for name in ("recompute_all", "chen_greedy", "exhaustive"):
        assert len(re.findall(rf"^{name} ", plain, re.MULTILINE)) == 2


def test_no_color_is_honoured():
    """Not one escape code."""
    assert "\x1b" not in on_a_terminal("planners", NO_COLOR="1")


def printed(capsys, *arguments, **options) -> list[str]:
    print_table(*arguments, **options)
    return capsys.readouterr().out.splitlines()


def test_columns_are_as_wide_as_their_widest_cell(capsys):
    """The first to the left, others to the right, two blanks between; no blanks at the end."""
    rows = [("a", "1", ""), ("long name", "22222", "x")]
    assert printed(capsys, ("name", "n", "more"), rows) == [
        "name           n  more",
        "a              1",
        "long name  22222     x",
    ]
    assert printed(capsys, ("name", "n", "more"), rows, left=3) == [
        "name       n      more",
        "a          1",
        "long name  22222  x",
    ]
    assert printed(capsys, ("name", "n", "more"), rows, right=(0,))[1] == "        a  1"


def test_wide_cells_take_several_lines(capsys):
    """Words stay whole, and none is lost; a table without rows has its heads alone."""
    text = "one two-three four a-word-that-is-longer-than-the-column"
    lines = printed(capsys, ("n", "text"), [("1", text), ("2", "x")], left=2, most=(3, 10))
    assert lines == [
        "n  text",
        "1  one",
        "   two-three",
        "   four",
        "   a-word-that-is-longer-than-the-column",
        "2  x",
    ]
    assert printed(capsys, ("n", "text"), [], left=2) == ["n  text"]


def test_facts_have_their_values_in_one_column(capsys):
    """A fact without a value ends with its label."""
    print_facts([("a", "1"), ("longer", "2"), ("", "3"), ("none", "")])
    assert capsys.readouterr().out == "a       1\nlonger  2\n        3\nnone\n"


def test_a_document_is_one(capsys):
    """Whole, and nothing else."""
    print_json({"a": [1, None], "b": "größer"})
    assert json.loads(capsys.readouterr().out) == {"a": [1, None], "b": "größer"}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1234, "+12.34 %"), (-0.00001, "-0.00 %"), (0.0, "+0.00 %"), (12, "+1200.00 %")],
)
def test_shares_have_a_sign(value, text):
    """And a blank before the per cent."""
    assert percent(value) == text


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_long_search_tells_its_best_on_a_terminal(monkeypatch):
    """After a moment, and what its planner reports; the line is gone at the end."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown: list[str] = []

    class Event(show.threading.Event().__class__):
        def wait(self, timeout=None):
            return super().wait(timeout and 0.01)

    class Status:
        def __init__(self, message):
            shown.append(message)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            shown.append("gone")

        def update(self, message):
            shown.append(message)

    monkeypatch.setattr(show.threading, "Event", Event)
    monkeypatch.setattr("rich.console.Console.status", lambda self, message: Status(message))
    with working("planning"), searching("a step"):
        current().report(best_s=3.0, bound_s=2.0)
        for _ in range(500):
            if any("best 3 s" in line for line in shown):
                break
            time.sleep(0.01)
    assert shown[0] == "planning"
    assert any(re.fullmatch(r"planning: \d+ s, best 3 s, gap 50.00 %", line) for line in shown)
    assert shown[-1] == "gone"


def test_what_is_done_at_once_says_nothing(monkeypatch):
    """Nor what runs in a pipe; an error goes through, and the thread ends with it."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    before = show.threading.active_count()
    with pytest.raises(KeyError), working("planning"):
        raise KeyError
    assert terminal.getvalue() == ""
    assert show.threading.active_count() == before
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with working("planning"):
        assert show.threading.active_count() == before
