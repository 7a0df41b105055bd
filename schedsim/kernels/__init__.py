"""Compiled code: the records of arrays that kernels take, and how kernels are compiled.

`schedsim.kernels.record` does not import numba, so that workloads can be records. Only modules with
kernels import `schedsim.kernels.compiled`.
"""

from __future__ import annotations

import threading
import time

on_command_line = False
"""Whether to write notices to the terminal; only the command line sets it."""


class CompileClock:
    """Measures how long this process has compiled kernels, which no time limit counts.

    Only one kernel is compiled at a time; compiling the kernels that it calls is part of that.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth, self._began_s, self._total_s = 0, 0.0, 0.0

    def start(self) -> None:
        """Note that the compilation of a kernel begins."""
        with self._lock:
            if self._depth == 0:
                self._began_s = time.perf_counter()
            self._depth += 1

    def stop(self) -> None:
        """Note that the compilation ends."""
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                self._total_s += time.perf_counter() - self._began_s

    def without(self) -> float:
        """Seconds of a clock that stops while kernels are compiled."""
        with self._lock:
            now = time.perf_counter()
            return now - self._total_s - (now - self._began_s if self._depth else 0.0)


compile_clock = CompileClock()
