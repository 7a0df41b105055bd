"""Standard output holds results alone."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import schedsim

NOISY = """
import os, sys
from schedsim.cli import app, main

run = app.run

def noisy(arguments):
    os.write(1, b"a line of a solver\\n")  # as compiled code does, past Python
    return run(arguments)

app.run = noisy
sys.argv = ["schedsim", *sys.argv[1:]]
main()
"""
ROOT = next(iter(schedsim.__path__)).rsplit("/", 1)[0]


def noisy(*arguments: str, shell_end: str = "") -> subprocess.CompletedProcess[str]:
    """The command line in a process in which a library prints."""
    words = [sys.executable, "-c", NOISY, *arguments]
    command = ["sh", "-c", f'"$@" {shell_end}', "sh", *words] if shell_end else words
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)


def test_what_a_library_prints_goes_to_standard_error():
    done = noisy("planners", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)
    assert done.stderr == "a line of a solver\n"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_without_standard_error_nothing_is_lost():
    done = noisy("--version", shell_end="2>&-")
    assert done.returncode == 0
    assert schedsim.__version__ in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_without_standard_output_there_is_no_error():
    words = [sys.executable, "-m", "schedsim", "--version"]
    command = ["sh", "-c", '"$@" >&-', "sh", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
