"""One process of a machine compiles a kernel, and the others wait for the file that it writes.

All ranks of a machine come to the same kernel at the same time. If each compiled it, a machine with
fewer cores than ranks would take as many times as long.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from .. import kernels

PATIENCE_S = 60.0
"""Seconds to wait for another process, which may be stopped or very slow; then both compile."""

_PAUSE_S = 0.02


@contextlib.contextmanager
def compiled_by_one(path: Path, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Hold the lock file `path`, waited for at most `patience_s` seconds.

    The clock of searches stands still meanwhile. Nothing is waited for where no file can be locked;
    a process that ends gives its lock up.
    """
    with contextlib.ExitStack() as stack:
        try:
            import fcntl

            path.parent.mkdir(parents=True, exist_ok=True)
            handle = stack.enter_context(path.open("w"))
        except (ImportError, OSError):  # no such locks, or nothing can be written here
            yield
            return
        kernels.compile_clock.start()
        try:
            _wait(fcntl, handle, time.monotonic() + patience_s)
        finally:
            kernels.compile_clock.stop()
        yield


def _wait(fcntl: object, handle: IO[str], until_s: float) -> None:
    lock, flags = fcntl.flock, fcntl.LOCK_EX | fcntl.LOCK_NB  # type: ignore[attr-defined]
    while True:
        try:
            lock(handle, flags)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                return
            time.sleep(_PAUSE_S)
        except OSError:  # a file system without locks
            return
        else:
            return
