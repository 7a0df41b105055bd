"""Schedules: the order in which ops run, repeats included, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..checks.value_checks import shown
from ..errors import InvalidScheduleError, SchedsimError, did_you_mean

if TYPE_CHECKING:
    from ..dataflow.chain import Chain
    from ..dataflow.graph import Graph


class Schedule:
    """A sequence of op runs.

    The sequence decides which tensor is freed when, and whether a forward keeps its saved bundle.
    Running an op again is recomputation. A schedule is immutable.

    Parameters
    ----------
    op_names
        The table of ops that `runs` points into.
    runs
        Indices into `op_names`, shape ``(num_runs,)``, in run order.
    runs_with
        For a plan's schedule, what it needs besides the given workload, in words: variants, copies.
        Empty for a schedule of a plain workload. Equality ignores this field.

    Raises
    ------
    InvalidScheduleError
        `runs` are not such indices.

    Examples
    --------
    >>> Schedule.from_names(["F0", "F1", "loss", "B1", "F0", "B0"])
    Schedule(F0 F1 loss B1 F0 B0)
    """

    __slots__ = ("op_names", "runs", "runs_with")

    op_names: tuple[str, ...]
    runs: NDArray[np.int32]
    runs_with: str

    def __init__(
        self,
        op_names: Sequence[str],
        runs: Sequence[int] | NDArray[Any],
        runs_with: str = "",
    ) -> None:
        try:
            given, num_ops = np.asarray(runs), len(op_names)
        except (TypeError, ValueError, OverflowError):
            raise SchedsimError(
                f"a schedule of {shown(runs)} on {shown(op_names)}",
                hint="Schedule(op_names, runs): names, and indices into them",
            ) from None
        # Checked before the conversion, which would truncate fractions and wrap large numbers.
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise _not_indices(f"{given.ndim} dimensions of {given.dtype}", num_ops, None)
        outside = np.flatnonzero((given < 0) | (given >= num_ops)) if given.size else given
        if outside.size:
            at = int(outside[0])
            raise _not_indices(f"schedule[{at}] is {given[at]}", num_ops, at)
        array = given.astype(np.int32)  # a copy, which the caller cannot change
        array.setflags(write=False)
        object.__setattr__(self, "op_names", tuple(op_names))
        object.__setattr__(self, "runs", array)
        object.__setattr__(self, "runs_with", runs_with)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a schedule is immutable")

    def __reduce__(self) -> tuple[Any, ...]:
        return (Schedule, (self.op_names, self.runs, self.runs_with))

    @classmethod
    def from_names(cls, names: Iterable[str]) -> Schedule:
        """The schedule that runs the ops called `names`, in order."""
        table: dict[str, int] = {}
        try:
            names = tuple(names)
        except TypeError:
            raise SchedsimError(
                f"{shown(names)} is not a list of op names", hint="['F0', 'F1', 'loss', ...]"
            ) from None
        runs = [table.setdefault(name, len(table)) for name in names]
        return cls(tuple(table), runs)

    @classmethod
    def store_all(cls, workload: Chain | Graph) -> Schedule:
        """The schedule that runs every required op of `workload` once, in its own order."""
        if not hasattr(workload, "op_names"):
            raise SchedsimError(f"{shown(workload)} is no workload", hint="a Chain or a Graph")
        names = workload.op_names
        if workload.kind == "graph" and not all(op.required for op in workload.graph.ops):
            return cls(names, [i for i, op in enumerate(workload.graph.ops) if op.required])
        return cls(names, np.arange(len(names)))

    @property
    def names(self) -> list[str]:
        """The names of the ops, in run order."""
        table = self.op_names
        return [table[run] for run in self.runs.tolist()]

    def bind(self, workload: Chain | Graph) -> NDArray[np.int32]:
        """The runs as indices into the ops of `workload`, shape ``(num_runs,)``.

        Raises
        ------
        InvalidScheduleError
            Where the schedule runs an op that the workload does not have.
        """
        if self.op_names == workload.op_names:
            return self.runs
        index = {name: i for i, name in enumerate(workload.op_names)}
        table = np.array([index.get(name, -1) for name in self.op_names], dtype=np.int32)
        bound = table[self.runs]
        unknown = np.flatnonzero(bound < 0)
        if unknown.size:
            at = int(unknown[0])
            name = self.op_names[self.runs[at]]
            raise InvalidScheduleError(
                f"schedule[{at}]: unknown op {name!r} in workload {workload.name!r}",
                rule="unknown op",
                run_index=at,
                op_name=name,
                hint=did_you_mean(name, workload.op_names, "is this the plan's workload?"),
            )
        return bound

    def __len__(self) -> int:
        return int(self.runs.size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        if self.op_names == other.op_names:
            return bool(np.array_equal(self.runs, other.runs))
        return self.names == other.names

    def __hash__(self) -> int:
        return hash(tuple(self.names))

    def __repr__(self) -> str:
        names = self.names
        if len(names) > 24:
            names = [*names[:12], "...", *names[-6:]]
            return f"Schedule({' '.join(names)}; {len(self)} runs)"
        return f"Schedule({' '.join(names)})"


def _not_indices(what: str, num_ops: int, run_index: int | None) -> InvalidScheduleError:
    return InvalidScheduleError(
        f"runs must be whole indices into {num_ops} op names, one after another: {what}",
        rule="unknown op",
        run_index=run_index,
        op_name="",
        hint="Schedule.from_names takes the names themselves",
    )
