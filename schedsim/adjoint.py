"""Schedules for adjoint codes, in the protocol of the package checkpoint_schedules.

pyadjoint (Firedrake, dolfin-adjoint), like every program that runs schedules of that package, can
run the schedules made here:

>>> from schedsim.adjoint import Schedule
>>> schedule = Schedule(1000, 20)  # 1000 steps, room for the data of 20
>>> schedule.forward_s, schedule.optimal
(2823.0, True)
>>> next(schedule)
Forward(0, 186, True, False, StorageType.RAM)

`OnlineSchedule` is for a simulation whose length is not known beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .algorithms.chains.adjoint_steps import (
    AdjointPlan,
    AdjointSteps,
    StepAction,
    plan_adjoint,
    reversal,
)
from .errors import MissingDependencyError, SchedsimError
from .units import parse_bytes

try:
    from checkpoint_schedules import (
        CheckpointSchedule,
        Copy,
        EndForward,
        EndReverse,
        Forward,
        Move,
        Reverse,
        StorageType,
    )
except ImportError as error:
    raise MissingDependencyError(
        "schedsim.adjoint needs checkpoint_schedules", hint="pip install 'schedsim[adjoint]'"
    ) from error

__all__ = ["AdjointSchedule", "OnlineSchedule", "Schedule", "StorageType"]

_STORAGE = {
    "ram": StorageType.RAM,
    "disk": StorageType.DISK,
    "work": StorageType.WORK,
    "none": StorageType.NONE,
}


class AdjointSchedule(CheckpointSchedule):  # type: ignore[misc]  # of a package without types
    """The schedule of least time for an adjoint whose number of steps is known.

    For each step the schedule stores restart data (the state before the step), adjoint data (what
    the adjoint of the step needs), or nothing, whichever is best. The working storage of the
    running step comes on top of `ram`, as everywhere in checkpoint_schedules. A schedule calculates
    one adjoint.

    Parameters
    ----------
    max_n
        Number of steps.
    ram
        Memory for what is stored: a number, or text like ``"8GiB"``. With the default sizes of 1
        it is the number of snapshots, as `MixedCheckpointSchedule` takes.
    restart_bytes, adjoint_bytes
        Size of the data of every step, or a sequence with one size per step.
    forward_s
        Seconds of every step, or a sequence with one time per step.
    disk
        ``(write, read)``: seconds per byte, where data may go to disk. The disk holds any number of
        bytes; the computation waits for each copy.
    max_slots
        Sizes without a common divisor are rounded up to memory slots. More slots take longer to
        plan and leave a smaller gap between `forward_s` and `bound_s`.

    Attributes
    ----------
    plan : AdjointPlan
        The plan behind the schedule; it says whether it is exact.

    Raises
    ------
    SchedsimError
        The memory is too small to hold one state from which the forward could begin again.

    Notes
    -----
    For equal steps the schedule is as fast as Maddison's mixed schedule, which is optimal there
    (Maddison 2024, J. Comput. Sci. 82, 102405). For steps that differ it is optimal over persistent
    schedules where `optimal` says so; elsewhere it takes at most `forward_s` / `bound_s` times the
    least time.
    """

    def __init__(
        self,
        max_n: int,
        ram: int | str,
        *,
        restart_bytes: int | Sequence[int] = 1,
        adjoint_bytes: int | Sequence[int] = 1,
        forward_s: float | Sequence[float] = 1.0,
        disk: tuple[float, float] | None = None,
        max_slots: int | None = None,
    ) -> None:
        super().__init__(max_n)
        ram_bytes = parse_bytes(ram) if isinstance(ram, str) else int(ram)
        write, read = (math.inf, math.inf) if disk is None else disk
        steps = AdjointSteps(
            np.asarray(_each(forward_s, max_n), dtype=np.float64),
            np.asarray(_each(restart_bytes, max_n), dtype=np.int64),
            np.asarray(_each(adjoint_bytes, max_n), dtype=np.int64),
            write,
            read,
        )
        self.plan: AdjointPlan = plan_adjoint(steps, ram_bytes, max_slots)
        self._exhausted = False
        self._used = {one.place for one in self.plan.actions() if one.data != "none"}

    @property
    def forward_s(self) -> float:
        """Seconds of all forwards, repeats included, and of the disk."""
        return self.plan.time_s

    @property
    def bound_s(self) -> float:
        """No persistent schedule takes less."""
        return self.plan.bound_s

    @property
    def optimal(self) -> bool:
        """Whether `forward_s` is proven least."""
        return self.plan.optimal

    def _iterator(self) -> Iterator[Any]:
        reversing = False
        for one in self.plan.actions():
            if one.what == "reverse" and not reversing:
                reversing = True
                yield EndForward()
            yield self._act(one)
        self._exhausted = True
        yield EndReverse()

    def _act(self, one: StepAction) -> Any:
        """The protocol's action for `one`; moves the position of this schedule along."""
        place = _STORAGE[one.place]
        if one.what == "reverse":
            self._r += 1
            return Reverse(one.last, one.first, True)
        if one.what == "load":
            self._n = one.first if one.data == "restart" else one.first + 1
            kind = Move if one.last_use else Copy
            return kind(one.first, place, StorageType.WORK)
        self._n = one.last
        return Forward(one.first, one.last, one.data == "restart", one.data == "adjoint", place)

    @property
    def is_exhausted(self) -> bool:
        """Whether the adjoint has been calculated."""
        return self._exhausted

    def uses_storage_type(self, storage_type: StorageType) -> bool:
        """Whether the schedule stores anything in this type of storage."""
        return any(_STORAGE[place] == storage_type for place in self._used)


Schedule = AdjointSchedule

_NEVER_S = 1e12  # seconds to write a byte


def _each(value: Any, num: int) -> Any:
    if isinstance(value, Sequence | np.ndarray):
        return value
    return np.full(num, value)


class OnlineSchedule(CheckpointSchedule):  # type: ignore[misc]  # of a package without types
    """A schedule for a simulation whose length is known only at its end: call `finalize` there.

    With a `period`, restart data goes to disk every so many steps and stays there, as in
    checkpoint_schedules' two-level schedule (Pringle et al. 2016); within a period the adjoint is
    planned exactly, with restart and adjoint data in memory, so that it repeats at most as many
    steps as the two-level schedule. The space needed on disk grows with the length. pyadjoint runs
    this variant unchanged.

    Without a period there is no disk. While the simulation runs, restart data is stored by the rule
    of Wang, Moin & Iaccarino 2009 ("Minimal repetition dynamic checkpointing algorithm for unsteady
    adjoint calculation", SIAM J. Sci. Comput. 31, 2549): where all snapshots are in use, the new
    snapshot replaces a dispensable one, or else the newest one, and is then of a level one higher.
    Whatever the length n turns out to be, no step is repeated more often than the least t >= 1 with
    C(snapshots + t, t) >= n (their theorem), as in the binomial schedule that knew n. The adjoint
    is then planned exactly between the snapshots that are there, adjoint data included.

    Parameters
    ----------
    snapshots
        Number of steps whose data fits in memory; restart and adjoint data count alike. At least 2;
        with a period, at least 0.
    period
        Steps between restart data on disk.

    Raises
    ------
    SchedsimError
        Too few snapshots, or a period below 1.

    Notes
    -----
    Without a period the protocol's ``Move(n, RAM, NONE)`` deletes a snapshot while the forward
    runs. pyadjoint does not accept this action while it records the tape. By the protocol, restart
    data stored by ``Forward(n0, n1)`` is what the steps n0 to n1 - 1 need. A deletion joins two
    such stretches, so this variant suits only codes in which the state before a step is all that
    later steps need. A bounded number of snapshots cannot do without deletions: each stretch is
    fixed when it is stored, and the length is not known then.
    """

    def __init__(self, snapshots: int, *, period: int | None = None) -> None:
        super().__init__(None)
        least = 2 if period is None else 0
        if snapshots < least:
            hint = "two or more, or period=" if period is None else "zero or more"
            raise SchedsimError(
                f"{snapshots} snapshots are too few for an unknown length", hint=f"give {hint}"
            )
        if period is not None and period < 1:
            raise SchedsimError(f"a period of {period} steps", hint="give one or more")
        self.snapshots = snapshots
        self.period = period
        self.num_forwards = 0
        self._exhausted = False

    def _iterator(self) -> Iterator[Any]:
        if self.period is not None:
            yield from self._by_periods(self.period)
            return
        stored: dict[int, float] = {}  # step -> level, by step; the first state always stays
        while self._max_n is None:
            here = self._n
            if len(stored) < self.snapshots:
                stored[here] = 0.0 if here else math.inf
            else:
                gone = _dispensable(stored)
                level = 0.0
                if gone is None:
                    gone = next(reversed(stored))
                    level = stored[gone] + 1
                del stored[gone]
                yield Move(gone, StorageType.RAM, StorageType.NONE)
                stored[here] = level
            self._n += 1
            self.num_forwards += 1
            yield Forward(here, here + 1, True, False, StorageType.RAM)
        yield EndForward()
        yield from self._reverse(self._max_n, list(stored))
        self._exhausted = True
        yield EndReverse()

    def _by_periods(self, period: int) -> Iterator[Any]:
        stored: list[int] = []
        while self._max_n is None:
            stored.append(self._n)
            self._n += period
            yield Forward(stored[-1], self._n, True, False, StorageType.DISK)
        self.num_forwards = self._max_n
        yield EndForward()
        ones = np.ones(min(period, self._max_n), dtype=np.int64)
        # Only the starts of periods go to disk: a write this slow is never worth it to the planner,
        # and reading is free.
        steps = AdjointSteps(np.ones(ones.size), ones, ones, _NEVER_S, 0.0)
        tables = plan_adjoint(steps, self.snapshots).solution
        for first in reversed(stored):
            length = self._max_n - self._r - first
            for one in reversal(tables, 0, length, tables.slots, "disk"):
                yield self._act(one, first)
        self._exhausted = True
        yield EndReverse()

    def _reverse(self, num_steps: int, stored: list[int]) -> Iterator[Any]:
        for number in range(len(stored) - 1, -1, -1):
            first, last = stored[number], num_steps - self._r
            room = self.snapshots - number
            length = last - first
            ones = np.ones(length, dtype=np.int64)
            steps = AdjointSteps(np.ones(length), ones, ones)
            tables = plan_adjoint(steps, room).solution
            for one in reversal(tables, 0, length, tables.slots, "ram"):
                yield self._act(one, first)

    def _act(self, one: StepAction, offset: int) -> Any:
        first, last = one.first + offset, one.last + offset
        if one.what == "reverse":
            self._r += 1
            return Reverse(last, first, True)
        if one.what == "load":
            self._n = first if one.data == "restart" else first + 1
            kind = Move if one.last_use else Copy
            return kind(first, _STORAGE[one.place], StorageType.WORK)
        self._n = last
        self.num_forwards += last - first
        place = _STORAGE[one.place]
        return Forward(first, last, one.data == "restart", one.data == "adjoint", place)

    @property
    def is_exhausted(self) -> bool:
        """Whether the adjoint has been calculated."""
        return self._exhausted

    def uses_storage_type(self, storage_type: StorageType) -> bool:
        """Whether it uses this storage: memory if it has snapshots, disk if it has a period."""
        if storage_type == StorageType.DISK:
            return self.period is not None
        return bool(storage_type == StorageType.RAM and self.snapshots)


def _dispensable(stored: dict[int, float]) -> int | None:
    """The newest snapshot that has a later one of a higher level; ``None`` if there is none."""
    highest = -1.0
    for step in reversed(stored):
        if stored[step] < highest:
            return step
        highest = max(highest, stored[step])
    return None
