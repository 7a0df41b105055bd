"""Keeps a line that HiGHS prints in spite of its options out of the caller's output.

HiGHS writes the line with ``printf`` where a solution that its heuristics found needs a repair, to
the process's standard output, which may be a program's result. While a solver runs, the C library's
``stdout`` is a stream in memory; what else was written there goes on to the real one afterwards.
Python writes to the file descriptor itself and notices nothing, and so do other threads.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_LINE = b"transformNewIntegerFeasibleSolution"

_lock = threading.Lock()
_running = 0  # solvers at work


@contextmanager
def without_solver_lines() -> Iterator[None]:
    """The line of the solver is dropped while this is entered, in any number of threads.

    Where the C library does not let its ``stdout`` be set, nothing happens.
    """
    global _running
    with _lock:
        memory = _memory()
        _running += memory is not None
        if memory is not None and _running == 1:
            memory.begin()
    try:
        yield
    finally:
        with _lock:
            _running -= memory is not None
            if memory is not None and not _running:
                memory.end()


class _HeldOutput:
    """A stream in memory that stands in the place of the C library's ``stdout`` for a while.

    It is never closed: another thread may be about to write to it when the while is over.
    """

    def __init__(self, library: Any) -> None:
        self.library = library
        self.text, self.size = ctypes.c_void_p(), ctypes.c_size_t()
        self.seen = 0  # bytes that have gone on to the real stream, or were dropped
        self.stdout = ctypes.c_void_p.in_dll(library, "stdout")
        self.real = self.stdout.value
        self.stream = library.open_memstream(ctypes.byref(self.text), ctypes.byref(self.size))

    def begin(self) -> None:
        """Take the place of the real stream."""
        self.real = self.stdout.value
        if self.stream:
            self.stdout.value = self.stream

    def end(self) -> None:
        """Put the real stream back, and write to it all lines but the solver's."""
        self.stdout.value = self.real
        if not self.stream:
            return
        self.library.fflush(self.stream)
        written = ctypes.string_at(self.text, self.size.value)[self.seen :] if self.text else b""
        self.seen += len(written)
        rest = b"".join(line for line in written.splitlines(keepends=True) if _LINE not in line)
        if rest:
            self.library.fwrite(rest, 1, len(rest), self.real)
            self.library.fflush(self.real)


@cache
def _memory() -> _HeldOutput | None:
    """The stream, if the C library is glibc, whose manual calls ``stdout`` a variable."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    names = ("gnu_get_libc_version", "stdout", "open_memstream", "fflush", "fwrite")
    if not all(hasattr(library, name) for name in names):
        return None
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    library.open_memstream.restype = pointer
    library.open_memstream.argtypes = [ctypes.POINTER(pointer), ctypes.POINTER(size)]
    library.fflush.argtypes = [pointer]
    library.fwrite.argtypes = [ctypes.c_char_p, size, size, pointer]
    return _HeldOutput(library)
