"""Compiled code: what records of arrays kernels take, and how and when they are compiled.

`schedsim.kernels.record` is free of numba, so that workloads can be records; only modules that hold
kernels import `schedsim.kernels.compiled`.
"""

from __future__ import annotations

import threading
import time

on_command_line = False
"""Set by the command line: a library does not write to its caller's terminal."""


class CompileClock:
    """How long kernels have been compiled in this process; a time limit does not count it.

    Only one kernel is compiled at a time, and the compilers that it starts for the kernels that it
    calls are part of it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth, self._began_s, self._total_s = 0, 0.0, 0.0

    def start(self) -> None:
        """A kernel begins to be compiled."""
        with self._lock:
            if self._depth == 0:
                self._began_s = time.perf_counter()
            self._depth += 1

    def stop(self) -> None:
        """That kernel is there."""
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                self._total_s += time.perf_counter() - self._began_s

    def without(self) -> float:
        """Seconds of a clock that stands still while kernels are compiled."""
        with self._lock:
            now = time.perf_counter()
            return now - self._total_s - (now - self._began_s if self._depth else 0.0)


compile_clock = CompileClock()
