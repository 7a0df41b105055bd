"""Bytes by the CPU allocator's own record: what torch requested, including kernels' scratch memory.

torch.profiler logs every allocation and release of the CPU allocator. Memory that libraries take
from the system themselves (a matrix library's packing buffers) is not in the record.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from types import MappingProxyType
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from schedsim.errors import SchedsimError

from ..torch_private.graph_tasks import in_backward
from ..torch_private.profiler_records import (
    allocator_events,
    beginning_own,
    forget_results,
    is_profiling,
    marks,
    watch_other_profilers,
)
from .quiet import quiet_stderr

NO_BLOCKS: Mapping[int, int] = MappingProxyType({})
_PHASE = "schedsim phase"
_waiting: list[Callable[[], bool]] = []
_running: list[weakref.ref[AllocatorRecord]] = []
_num_ended = 0


def close_later(action: Callable[[], bool]) -> None:
    """Call `action`, which says whether it stopped a record, in the next `close_waiting`."""
    _waiting.append(action)


def close_waiting() -> bool:
    """Stop the records that can be stopped by now; whether there was one."""
    actions = _waiting[:]
    _waiting.clear()  # an action may ask to be called another time
    ended = [action() for action in actions]
    return any(ended)


def records_ended() -> int:
    """How many records have ended in this process.

    Ranges of the profiler that are open where a record ends write to its freed memory as they end,
    if another record runs by then. So code inside of such a range, as a backward or the forward of
    an autograd function is, begins no record that outlives it once this number has changed.
    """
    return _num_ended


def is_recording() -> bool:
    """Whether a record of this module is on, and not another profiler."""
    return any(record() is not None for record in _running)


def allocator_record(*functions: Callable[[], Any]) -> list[tuple[list[int], Any]]:
    """Changes of the CPU allocator's bytes, in order, and the result, for each function in turn.

    Releases of blocks that were allocated before are left out, so that memory which a thread frees
    late does not count in the next record: `functions` must free nothing that they did not
    allocate.

    Raises
    ------
    SchedsimError
        Another record began while one of `functions` ran, or a profiler is on.

    Examples
    --------
    >>> import torch
    >>> [(changes, _)] = allocator_record(lambda: torch.zeros(1000).sum())
    >>> changes[0], sum(changes)
    (4000, 4)
    """
    results = []
    record = AllocatorRecord()
    record.start()
    try:
        for function in functions:
            record.mark()
            results.append(function())
    finally:
        phases = record.stop()
    record.check_whole()
    alive: dict[int, int] = {}
    changes = []
    for phase in phases:
        changes.append(list(_of_known(phase, alive)))
    return list(zip(changes, results, strict=True))


def allocations(run: Callable[[], Any]) -> list[int]:
    """Changes of the CPU allocator's bytes, in order, during `run`: positive for allocations."""
    record = AllocatorRecord()
    record.start()
    try:
        record.mark()
        run()
    finally:
        phases = record.stop()
    record.check_whole()
    return [change for phase in phases for _, change in phase]


class AllocatorRecord:
    """A record of the CPU allocator from `start` to `stop`, in phases that begin with a `mark`.

    There is one profiler in a process: a record that begins ends the one before, which then has no
    phases. So does a profiler of the loop's own, and a fork, as of workers that load data. A record
    that nothing refers to any more is stopped, and at the end of the process too: freeing tensors
    under a profiler while the interpreter ends is a segmentation fault.
    """

    def __init__(self) -> None:
        # `acc_events`: torch 2.11 warns of events of other cycles, of which there are none.
        self._recorder = profile(
            activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True
        )
        self._forgotten: weakref.finalize[..., AllocatorRecord] | None = None
        self._is_cut = False
        self._thread = 0

    def start(self) -> None:
        """Begin to record.

        Raises
        ------
        SchedsimError
            Another profiler is on, which would lose what it has seen.
        """
        make_way()
        if is_profiling():
            raise SchedsimError(
                "torch.profiler is on, and a process has one profiler: memory cannot be measured",
                hint="plan, or run the first steps, before the profiler starts",
            )
        unknown = torch.empty(1)
        with quiet_stderr():
            with beginning_own():
                self._recorder.start()
            del unknown  # torch says in a line that it knows no such block, of a thousand once
        self._thread = threading.get_ident()
        self._forgotten = weakref.finalize(self, _abandon, self._recorder, self._thread)
        _running[:] = [weakref.ref(self)]

    def _cut(self) -> None:
        self._is_cut = True
        self._end()
        forget_results(self._recorder)

    def _end(self) -> None:
        global _num_ended
        _num_ended += 1
        _running.clear()
        if self._forgotten is not None:
            self._forgotten.detach()
        with quiet_stderr():
            self._recorder.stop()

    def mark(self) -> None:
        """Begin the next phase."""
        with record_function(_PHASE):
            pass

    def check_whole(self) -> None:
        """Raise `SchedsimError` if another record has ended this one."""
        if self._is_cut:
            raise SchedsimError(
                "ops were measured meanwhile, as for a plan that was made, and a process has one "
                "record of its memory",
                hint="measure later steps: run the loop once, and then under the meter",
            )

    def stop(self) -> list[list[tuple[int, int]]]:
        """(address, change of bytes) in order, for each phase; nothing if another record began."""
        if self._is_cut:
            return []
        self._end()
        # Events arrive by thread: they are sorted by time.
        found = sorted(
            [(time_ns, None) for time_ns in marks(self._recorder, _PHASE)]
            + list(allocator_events(self._recorder)),
            key=lambda item: item[0],
        )
        forget_results(self._recorder)
        phases: list[list[tuple[int, int]]] = []
        for _, change in found:
            if change is None:
                phases.append([])
            elif phases:
                phases[-1].append(change)
        return phases


def make_way() -> None:
    """End the record that runs: a profiler begins, and bears none beside it."""
    close_waiting()
    for record in _present():
        record._cut()


def _make_way_for_fork() -> None:
    """A child of this thread would run on with a profiler that nobody ends."""
    if any(record._thread == threading.get_ident() for record in _present()):
        make_way()


def _present() -> list[AllocatorRecord]:
    return [record for reference in _running if (record := reference()) is not None]


watch_other_profilers(make_way)
os.register_at_fork(before=_make_way_for_fork)


def _abandon(recorder: Any, thread: int) -> bool:
    """Stop `recorder`, which no one will read; later, where it cannot be stopped at once."""
    if in_backward() or threading.get_ident() != thread:
        close_later(lambda: _abandon(recorder, thread))
        return False
    global _num_ended
    _num_ended += 1
    with quiet_stderr():
        recorder.stop()
    forget_results(recorder)
    return True


def most_and_left(
    phase: list[tuple[int, int]], watched: Mapping[int, int] = NO_BLOCKS
) -> tuple[int, int]:
    """The most bytes above those at the start of `phase`, and the bytes that are left at its end.

    Releases of blocks from before do not count, but those of blocks `watched`.

    Parameters
    ----------
    watched
        Bytes of blocks from before by their addresses. The record may tell other bytes, as of a
        block that was there under an earlier record, and has gone since under none.

    Examples
    --------
    >>> most_and_left([(1, 10), (2, -8)]), most_and_left([(2, -8), (1, 10)], watched={2: 8})
    ((10, 10), (2, 2))
    >>> most_and_left([(2, -8), (1, 10)], watched={2: 4})
    (6, 6)
    """
    live = most = 0
    for change in _of_known(phase, dict(watched)):
        live += change
        most = max(most, live)
    return most, live


def blocks_left(phase: list[tuple[int, int]]) -> dict[int, int]:
    """Bytes by address of the blocks that `phase` has allocated and not released.

    Examples
    --------
    >>> blocks_left([(1, 10), (2, 5), (1, -10), (3, -7)])
    {2: 5}
    """
    alive: dict[int, int] = {}
    for _ in _of_known(phase, alive):
        pass
    return alive


def levels(
    phases: Sequence[list[tuple[int, int]]], released: Iterable[int] = ()
) -> list[tuple[int, int]]:
    """For each of successive phases, the bytes at its start, and the most bytes in it.

    Both are beyond those at the start of the first phase. Releases of blocks from before that are
    not in the record: `released` has their bytes, those that are gone as each phase begins.

    Examples
    --------
    >>> levels([[(1, 10)], [(2, 5), (1, -10), (3, -7)], []])
    [(0, 10), (10, 15), (5, 5)]
    >>> levels([[(1, 10)], [(2, 5)]], released=[0, 7])
    [(0, 10), (3, 8)]
    """
    alive: dict[int, int] = {}
    live, found = 0, []
    freed = chain(released, repeat(0))
    for phase in phases:
        live -= next(freed)
        begin = most = live
        for change in _of_known(phase, alive):
            live += change
            most = max(most, live)
        found.append((begin, most))
    return found


def _of_known(phase: list[tuple[int, int]], alive: dict[int, int]) -> Iterator[int]:
    """Changes of `phase`, without the releases of blocks that are not `alive`.

    Parameters
    ----------
    alive
        Bytes of the blocks that are there, by their addresses; kept up to date.
    """
    for address, size in phase:
        if size > 0:
            alive[address] = size
            yield size
        elif address in alive:  # of another block, an earlier record contains the allocation
            yield -alive.pop(address)
