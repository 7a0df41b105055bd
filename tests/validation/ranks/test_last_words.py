"""What a rank says before an exception ends its process."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.ranks import last_words
from schedsim.validation.ranks.last_words import words_of


def _exits(code, cause=None):
    error = SystemExit(code)
    error.__context__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("the disk is full"), "ended by ValueError: the disk is full"),
        (_exits(3), "ended with status 3"),
        (_exits(1, ValueError("no")), "ended by ValueError: no"),
        (_exits(0), None),
        (_exits(None), None),
        (None, None),
    ],
)
def test_an_end_in_words(error, words):
    """Where a process that ends well has none."""
    assert words_of(error) == words


SCRIPT = """
import multiprocessing, sys
sys.path.insert(0, {folder!r})
import last_words

def work():
    last_words.tell_before_the_end(lambda line: print("told:", line, flush=True))
    raise ValueError("the disk is full")

if __name__ == "__main__":
    if "spawned" in sys.argv:
        child = multiprocessing.get_context("spawn").Process(target=work)
        child.start()
        child.join()
    else:
        work()
"""


@pytest.mark.parametrize("how", ["itself", "spawned"])
def test_an_uncaught_error_is_told_once(tmp_path, how):
    """By a script, and by a process of multiprocessing, which prints errors by itself."""
    script = tmp_path / "script.py"
    folder = last_words.__file__.rpartition("/")[0]
    script.write_text(SCRIPT.format(folder=folder))
    done = subprocess.run(
        [sys.executable, script, how], capture_output=True, text=True, check=False
    )
    assert done.stdout == "told: ended by ValueError: the disk is full\n"
    assert "Traceback" in done.stderr


def test_who_has_left_tells_no_more(monkeypatch):
    """As a group that was made anew."""
    monkeypatch.setattr(last_words, "_told", [])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    lines = []
    last_words.tell_before_the_end(lines.append)
    last_words.speak(ValueError("first"))
    last_words.forget(lines.append)
    last_words.forget(lines.append)
    last_words.speak(ValueError("second"))
    assert lines == ["ended by ValueError: first"]
