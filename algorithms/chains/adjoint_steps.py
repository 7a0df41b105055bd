"""Adjoints of time-stepping codes: which restart data and which adjoint data to store, exactly.

A step ``i`` takes the state before it (its *restart data*) to the next; its adjoint needs the
*adjoint data* that the forward of the step leaves. Memory holds what is stored; the state that the
forward is at, and the adjoint data that the adjoint works on, are in working storage outside of
that memory. This is the storage model of Maddison 2024 ("Step-based checkpointing with high-level
algorithmic differentiation", J. Comput. Sci. 82, 102405), in which all steps are alike and both
kinds of data have one size; here every step has its own sizes and time, and a disk may take part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from schedsim.errors import InvalidWorkloadError, PlannerLimitError, SchedsimError

from ._restart_table import fill_steps, fill_uniform, row

MAX_CELLS = 40_000_000
"""Entries of one table, 8 bytes each: 320 MB."""

MAX_STEPS = 400_000_000
"""Times compared in one solution, well under a second, where no number of slots is given."""

SCOPE = "persistent schedules: what is stored stays until its own adjoint steps"

Seconds = NDArray[np.float64]
Place = Literal["ram", "disk", "work", "none"]


class StepAction(NamedTuple):
    """One action of a schedule.

    Attributes
    ----------
    what
        ``"advance"`` from step `first` to `last`, storing `data`; ``"load"`` the data of step
        `first` from `place` into working storage; ``"reverse"`` step `first`.
    data
        For an advance: ``"restart"`` of its first step, ``"adjoint"`` of its only step, ``"none"``.
    place
        Where the data goes, or comes from.
    last_use
        For a load: whether what is stored is then deleted.
    """

    what: Literal["advance", "load", "reverse"]
    first: int
    last: int
    data: Literal["restart", "adjoint", "none"] = "none"
    place: Place = "work"
    last_use: bool = False


@dataclass(frozen=True)
class AdjointSteps:
    """The steps of a simulation whose adjoint is wanted.

    Attributes
    ----------
    forward_s : ndarray
        Seconds of each step.
    restart_bytes : ndarray
        Bytes of the state before each step.
    adjoint_bytes : ndarray
        Bytes of what the adjoint of each step needs.
    write_s_per_byte, read_s_per_byte : float
        Seconds per byte of the disk; infinite where there is no disk.
    """

    forward_s: NDArray[np.float64]
    restart_bytes: NDArray[np.int64]
    adjoint_bytes: NDArray[np.int64]
    write_s_per_byte: float = math.inf
    read_s_per_byte: float = math.inf

    def __post_init__(self) -> None:
        size = self.forward_s.size
        for name in ("forward_s", "restart_bytes", "adjoint_bytes"):
            values = getattr(self, name)
            if values.size != size or size == 0:
                raise InvalidWorkloadError(
                    f"{name} has {values.size} entries, forward_s {size}", hint="one for each step"
                )
            wrong = np.flatnonzero(~((values >= 0) & (values < 2**53)))
            if wrong.size:
                raise InvalidWorkloadError(
                    f"{name}[{wrong[0]}] is {values[wrong[0]]}", hint="zero or more, and finite"
                )
        rates = (self.write_s_per_byte, self.read_s_per_byte)
        if any(not rate >= 0 for rate in rates) or len({math.isinf(rate) for rate in rates}) > 1:
            raise InvalidWorkloadError(
                f"a disk of {rates[0]} s to write and {rates[1]} s to read a byte",
                hint="both zero or more, or both infinite for no disk",
            )

    @property
    def num_steps(self) -> int:
        """Number of steps."""
        return int(self.forward_s.size)

    @property
    def has_disk(self) -> bool:
        """Whether data may go to disk."""
        return math.isfinite(self.write_s_per_byte)

    @cached_property
    def uniform(self) -> bool:
        """Whether all steps are alike; the first state counts like the others."""
        columns = (self.forward_s, self.restart_bytes, self.adjoint_bytes)
        return all(bool((column == column[0]).all()) for column in columns)


class AdjointTables:
    """The tables of least times for sizes in slots, and the choices behind them.

    With ``C(i, j, m)`` the least seconds to take steps i to j - 1 forward and reverse them, given
    the state before i in working storage and m free slots, ``D`` the same with that state on disk,
    and F the seconds of forwards,

        C(i, i+1, m) = f_i
        C(i, j, m) = min( f_i + C(i+1, j, m - a_i)
                          f_i + a_i (write + read) + C(i+1, j, m)
                          min_k F(i, k) + C(k, j, m - x_i) + C(i, k, m)
                          x_i write + min_k F(i, k) + C(k, j, m) + D(i, k, m) )
        D(i, j, m) = x_i read + min( C(i, j, m) ; min_k F(i, k) + C(k, j, m) + D(i, k, m) )

    where the four choices store adjoint data in memory and on disk, and restart data likewise.
    """

    def __init__(
        self,
        steps: AdjointSteps,
        slots: int,
        restart: NDArray[np.int64],
        adjoint: NDArray[np.int64],
    ) -> None:
        self.steps, self.slots = steps, slots
        self.restart, self.adjoint = restart, adjoint
        write, read = steps.write_s_per_byte, steps.read_s_per_byte
        # Zero bytes over no disk would take no time, but they are not on a disk either: infinite.
        self.disk_s: Seconds = np.full((3, steps.num_steps), math.inf)
        if steps.has_disk:
            self.disk_s[0] = steps.restart_bytes * write
            self.disk_s[1] = steps.restart_bytes * read
            self.disk_s[2] = steps.adjoint_bytes * (write + read)
        self.start = np.concatenate([[0.0], np.cumsum(steps.forward_s)])
        n = steps.num_steps
        num_rows = n if steps.uniform else n * (n + 1) // 2
        self.free = np.empty((num_rows, slots + 1))
        self.kept = np.empty((num_rows if steps.has_disk else 0, slots + 1))
        tables = self.free, self.kept
        if steps.uniform:
            sizes = int(restart[0]), int(adjoint[0])
            write_s, read_s, both_s = map(float, self.disk_s[:, 0])
            times = float(steps.forward_s[0]), write_s, read_s, both_s
            fill_uniform(n, slots, sizes, times, *tables)
        else:
            fill_steps(slots, restart, adjoint, steps.forward_s, self.disk_s, *tables)

    def row(self, first: int, last: int) -> int:
        """The row of the sub-chain in the tables."""
        n = self.steps.num_steps
        return last - first - 1 if self.steps.uniform else int(row(n, first, last))

    def time_s(self, first: int, last: int, slots: int) -> float:
        """``C(first, last, slots)``."""
        return float(self.free[self.row(first, last), slots])

    def choice(self, i: int, j: int, m: int) -> tuple[str, Place, int]:
        """The choice that attains ``C(i, j, m)``: data, place, and the step advanced to."""
        if j == i + 1:
            return "adjoint", "work", j
        f = float(self.steps.forward_s[i])
        best = math.inf
        found: tuple[str, Place, int] = ("none", "none", j)
        if self.adjoint[i] <= m:
            best = f + self.time_s(i + 1, j, m - int(self.adjoint[i]))
            found = "adjoint", "ram", i + 1
        if self.steps.has_disk:
            time = f + float(self.disk_s[2, i]) + self.time_s(i + 1, j, m)
            if time < best:
                best, found = time, ("adjoint", "disk", i + 1)
        if self.restart[i] <= m:
            time, k = self._split(i, j, m, m - int(self.restart[i]), self.free)
            if time < best:
                best, found = time, ("restart", "ram", k)
        if self.steps.has_disk:
            time, k = self._split(i, j, m, m, self.kept)
            if float(self.disk_s[0, i]) + time < best:
                found = "restart", "disk", k
        return found

    def keeps_on_disk(self, i: int, j: int, m: int) -> int:
        """The step to advance to with the state before `i` left on disk, or -1 to delete it."""
        if j == i + 1:
            return -1
        time, k = self._split(i, j, m, m, self.kept)
        return k if time < self.time_s(i, j, m) else -1

    def _split(
        self, i: int, j: int, m: int, later_slots: int, again: NDArray[np.float64]
    ) -> tuple[float, int]:
        """The least of ``F(i, k) + C(k, j, later_slots) + again(i, k, m)``, and its last k."""
        k = np.arange(i + 1, j)
        n = self.steps.num_steps
        if self.steps.uniform:
            later, earlier = j - k - 1, k - i - 1
        else:
            later = k * (2 * n - k + 1) // 2 + j - k - 1
            earlier = i * (2 * n - i + 1) // 2 + k - i - 1
        gone = self.start[k] - self.start[i]
        times = gone + self.free[later, later_slots] + again[earlier, m]
        at = int(times.size - 1 - np.argmin(times[::-1]))  # far ahead, as the codes in use do
        return float(times[at]), int(k[at])


@dataclass(frozen=True, eq=False)
class AdjointPlan:
    """A schedule of stored data: exact, or as exact as the number of slots allows.

    Attributes
    ----------
    steps : AdjointSteps
    ram_bytes : int
        Bytes of memory for stored data.
    slot_bytes : int
        Sizes were rounded up to multiples of this; any divisor of all sizes is exact.
    time_s : float
        Seconds of all forwards, repeats included, and of the disk's reads and writes.
    bound_s : float
        No persistent schedule takes less.
    """

    steps: AdjointSteps
    ram_bytes: int
    slot_bytes: int
    time_s: float
    bound_s: float
    solution: AdjointTables

    @property
    def optimal(self) -> bool:
        """Whether the time is proven least over persistent schedules."""
        return self.time_s <= self.bound_s * (1 + 1e-12)

    def actions(self) -> Iterator[StepAction]:
        """The whole schedule: the forward, then the adjoint back to the first step. O(1) each."""
        return reversal(self.solution, 0, self.steps.num_steps, self.solution.slots)


def reversal(
    solution: AdjointTables, first: int, last: int, slots: int, stored: Place = "none"
) -> Iterator[StepAction]:
    """Take steps `first` to `last` forward and reverse them, within `slots`.

    Parameters
    ----------
    stored
        Where the restart data of `first` is: ``"ram"`` or ``"disk"`` (it is loaded, and deleted in
        the end), or ``"none"`` where the forward is at `first`. Its slots are among `slots`.
    """
    tasks: list[tuple[str, int, int, int]] = []
    if stored == "none":
        tasks.append(("fresh", first, last, slots))
    else:
        tasks.append((stored, first, last, slots))
    while tasks:
        task, i, j, m = tasks.pop()
        if task == "adjoint":
            place: Place = "ram" if m == 0 else "disk"
            yield StepAction("load", i, j, "adjoint", place, True)
            yield StepAction("reverse", i, j)
            continue
        data, place, k = solution.choice(i, j, m)
        on_disk = solution.keeps_on_disk(i, j, m) if task == "disk" else -1
        if task == "disk" and on_disk > 0:
            yield StepAction("load", i, j, "restart", "disk", False)
            yield StepAction("advance", i, on_disk)
            tasks.append(("disk", i, on_disk, m))
            tasks.append(("fresh", on_disk, j, m))
            continue
        held = task == "ram" and (data, place) == ("restart", "ram")
        if task in ("ram", "disk"):
            yield StepAction("load", i, j, "restart", "ram" if task == "ram" else "disk", not held)
        if data == "adjoint":
            yield StepAction("advance", i, i + 1, "adjoint", place)
            if place == "work":
                yield StepAction("reverse", i, i + 1)
                continue
            size = int(solution.adjoint[i]) if place == "ram" else 0
            tasks.append(("adjoint", i, i + 1, 0 if place == "ram" else 1))
            tasks.append(("fresh", i + 1, j, m - size))
            continue
        assert data == "restart", "a finite time has a choice behind it"
        if held:
            yield StepAction("advance", i, k)
        else:
            yield StepAction("advance", i, k, "restart", place)
        size = int(solution.restart[i]) if place == "ram" else 0
        tasks.append((place, i, k, m))
        tasks.append(("fresh", k, j, m - size))


def plan_adjoint(steps: AdjointSteps, ram_bytes: int, max_slots: int | None = None) -> AdjointPlan:
    """The least time to run `steps` forward and back with `ram_bytes` for stored data.

    Sizes are counted in slots of their greatest common divisor, which is exact, or, where that
    makes too many, in coarser ones: rounded up for the plan and down for the bound.

    Parameters
    ----------
    ram_bytes
        For stored restart and adjoint data together; a disk, where there is one, holds any amount.
    max_slots
        The most slots to take; by default as many as are solved in under a second.

    Raises
    ------
    SchedsimError
        Nothing that would let the forward begin again fits; the hint says what would.
    PlannerLimitError
        The tables for so many steps are too large.

    Notes
    -----
    O(n^2 m) time where all steps are alike, else O(n^3 m), for n steps and m slots.

    Examples
    --------
    >>> ones = np.ones(10, np.int64)
    >>> plan_adjoint(AdjointSteps(np.ones(10), ones, ones), 3).time_s
    19.0
    """
    if ram_bytes < 0:
        raise InvalidWorkloadError(f"{ram_bytes} bytes of memory", hint="zero or more")
    sizes = np.concatenate([steps.restart_bytes, steps.adjoint_bytes])
    ram_bytes = min(ram_bytes, int(steps.restart_bytes.sum() + steps.adjoint_bytes.sum()))
    unit = max(int(np.gcd.reduce(sizes)), 1)
    most = _most_slots(steps, max_slots)
    exact = ram_bytes // unit <= most
    slot = unit if exact else -(-ram_bytes // most)
    solution = AdjointTables(
        steps, ram_bytes // slot, -(-steps.restart_bytes // slot), -(-steps.adjoint_bytes // slot)
    )
    time_s = solution.time_s(0, steps.num_steps, solution.slots)
    if math.isinf(time_s):
        raise SchedsimError(
            f"{steps.num_steps} steps cannot be reversed with {ram_bytes} bytes of memory",
            hint=f"{_least_bytes(steps)} are enough (rounded to slots of {slot}), or a disk",
        )
    bound_s = time_s
    if not exact:
        relaxed = AdjointTables(
            steps, -(-ram_bytes // slot), steps.restart_bytes // slot, steps.adjoint_bytes // slot
        )
        bound_s = relaxed.time_s(0, steps.num_steps, relaxed.slots)
    return AdjointPlan(steps, ram_bytes, slot, time_s, bound_s, solution)


def _least_bytes(steps: AdjointSteps) -> int:
    """The least memory: adjoint data of some first steps, and restart data of the next step."""
    adjoint = np.concatenate([[0], np.cumsum(steps.adjoint_bytes[:-1])])
    return int(min((adjoint + steps.restart_bytes).min(), adjoint[-1]))


def _most_slots(steps: AdjointSteps, asked: int | None) -> int:
    """The most slots that memory and time allow, or as many as were asked for."""
    n = steps.num_steps
    cells, work = (n, n * n) if steps.uniform else (n * (n + 1) // 2, n**3 // 3 + 1)
    most = MAX_CELLS // cells
    if asked is None:
        most = min(most, max(MAX_STEPS // work, 64))
    elif asked > most:
        raise PlannerLimitError(
            f"{asked} slots for {n} steps are too many for the tables", hint=f"at most {most}"
        )
    else:
        most = asked
    if most < 8:
        raise PlannerLimitError(
            f"{n} steps that differ are too many for the tables",
            hint="plan groups of steps as one, or give them one size and time",
        )
    return most
