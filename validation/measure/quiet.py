"""Keeping a library's own lines off the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """Drop what is written to the process's standard error, below Python too.

    The profiler of some versions of torch prints a line at each start and stop.
    """
    sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:  # the process has no standard error
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
