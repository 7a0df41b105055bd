"""Keeping a library's own lines off the terminal, and no others."""

from __future__ import annotations

import contextlib
import os
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.measure.quiet import quiet_stderr


def test_what_is_written_below_python_is_dropped_too(capfd):
    """Before and after it is not, also where an error ends it."""
    print("before", file=sys.stderr)
    with contextlib.suppress(KeyError), quiet_stderr():
        os.write(2, b"a library speaks")
        raise KeyError
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "before\nafter\n"
