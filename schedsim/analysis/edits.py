"""Single changes to a schedule: keep a tensor that it recomputes, or recompute one it keeps."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from ..dataflow.graph import Graph
from ..simulation.schedule import Schedule

MAX_INSERTED_RUNS = 64
"""Limit on inserted runs: recomputing a tensor with more runs is not a single change."""


class ScheduleEditor:
    """Makes single changes of one schedule, each from the same original.

    Parameters
    ----------
    graph, schedule
        A legal schedule of the graph.

    Notes
    -----
    O(runs + reads + writes) once. A change then takes O(log runs) for each run and tensor that it
    concerns, and O(runs) to write the new schedule.

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("two", 4, forward_s=[1, 1], backward_s=[2, 2],
    ...                           output_bytes=[4, 4], saved_bytes=[10, 10])
    >>> ScheduleEditor(chain.graph, Schedule.store_all(chain)).recompute_instead(["r1"], 3)
    Schedule(F0 F1 loss B1 F0 B0)
    >>> schedule = Schedule.from_names(["F0", "F1", "loss", "B1", "F0", "B0"])
    >>> ScheduleEditor(chain.graph, schedule).keep_instead([4])
    Schedule(F0 F1 loss B1 B0)
    """

    def __init__(self, graph: Graph, schedule: Schedule) -> None:
        self.graph = graph
        self.runs = schedule.bind(graph)
        arrays = graph.arrays
        self._producer: list[int] = arrays.tensor_producer.tolist()
        self._reads = _lists(arrays.read_start.tolist(), arrays.read_tensor.tolist())
        self._writes = _lists(arrays.write_start.tolist(), arrays.write_tensor.tolist())
        # Runs that read and write each tensor, ascending.
        self._read_at: list[list[int]] = [[] for _ in self._producer]
        self._written_at: list[list[int]] = [[] for _ in self._producer]
        for k, op in enumerate(self.runs.tolist()):
            for t in self._reads[op]:
                self._read_at[t].append(k)
            for t in self._writes[op]:
                self._written_at[t].append(k)
        self.is_first = np.zeros(self.runs.size, dtype=bool)
        self.is_first[np.unique(self.runs, return_index=True)[1]] = True

    @cached_property
    def _number(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.graph.arrays.tensor_names)}

    def next_read(self, tensor: str, run: int) -> int | None:
        """The first run from `run` on that reads the instance alive there; ``None`` without one."""
        t = self._number[tensor]
        reads = self._read_at[t]
        at = bisect_left(reads, run)
        if at == len(reads):
            return None
        written = bisect_right(self._written_at[t], run)
        until = self._written_at[t][written] if written < len(self._written_at[t]) else None
        return reads[at] if until is None or reads[at] <= until else None

    def keep_instead(self, runs: Iterable[int]) -> Schedule:
        """The schedule without the repeats at `runs`, and without repeats that only served these.

        Tensors that the dropped repeats wrote are kept instead: their readers read the earlier
        instance.

        Parameters
        ----------
        runs
            Indices of runs that are not the first of their op.
        """
        stack = list(runs)
        if any(self.is_first[k] for k in stack):
            raise ValueError("the first run of an op cannot be dropped")
        dropped = set(stack)
        while stack:
            k = stack.pop()
            for t in self._reads[int(self.runs[k])]:
                maker = self._maker(t, k, dropped)
                if maker is None or self.is_first[maker] or maker in dropped:
                    continue
                if not self._is_wanted(maker, dropped):
                    dropped.add(maker)
                    stack.append(maker)
        stays = np.ones(self.runs.size, dtype=bool)
        stays[list(dropped)] = False
        return Schedule(self.graph.op_names, self.runs[stays])

    def _maker(self, tensor: int, run: int, dropped: set[int]) -> int | None:
        """The run that writes the instance that `run` reads, ignoring the dropped runs."""
        written = self._written_at[tensor]
        at = bisect_left(written, run) - 1
        while at >= 0 and written[at] in dropped:
            at -= 1
        return written[at] if at >= 0 else None

    def _is_wanted(self, run: int, dropped: set[int]) -> bool:
        """Whether a run that stays reads an output of `run`."""
        for t in self._writes[int(self.runs[run])]:
            written, reads = self._written_at[t], self._read_at[t]
            at = bisect_right(written, run)
            while at < len(written) and written[at] in dropped:
                at += 1
            until = written[at] if at < len(written) else self.runs.size
            for i in range(bisect_right(reads, run), len(reads)):
                if reads[i] > until:
                    break
                if reads[i] not in dropped:
                    return True
        return False

    def recompute_instead(self, tensors: Sequence[str], at_run: int) -> Schedule | None:
        """The schedule that evicts `tensors` across run `at_run` and recomputes them.

        Each tensor is recomputed for its next reader, and so are inputs of its producer that are
        not alive at that point.

        Parameters
        ----------
        tensors
            Tensors that are alive during run `at_run`, which neither reads nor writes them.

        Returns
        -------
        Schedule or None
            ``None`` if an op to repeat must run once, if no later run reads the tensors, or if more
            than `MAX_INSERTED_RUNS` runs would be needed.
        """
        missing = {self._number[name] for name in tensors}
        after = [
            self._read_at[t][i]
            for t in missing
            if (i := bisect_left(self._read_at[t], at_run + 1)) < len(self._read_at[t])
        ]
        if not after:
            return None
        at = min(after)
        once = self.graph.arrays.op_once
        needed: set[int] = set()
        stack = [self._producer[t] for t in missing]
        while stack:
            op = stack.pop()
            if op < 0 or op in needed:
                continue
            if once[op] or len(needed) >= MAX_INSERTED_RUNS:
                return None
            needed.add(op)
            stack += [
                self._producer[t]
                for t in self._reads[op]
                if t in missing or not self._is_alive(t, at)
            ]
        # The order of the graph is an order in which the ops can run.
        inserted = np.array(sorted(needed), dtype=self.runs.dtype)
        return Schedule(
            self.graph.op_names, np.concatenate([self.runs[:at], inserted, self.runs[at:]])
        )

    def _is_alive(self, tensor: int, at: int) -> bool:
        """Whether a run inserted before run `at` can read `tensor`: an input, or read later."""
        if self._producer[tensor] < 0:
            return True
        written, reads = self._written_at[tensor], self._read_at[tensor]
        later = bisect_left(written, at)
        if later == 0:
            return False
        until = written[later] if later < len(written) else None
        if until is None and self.graph.arrays.tensor_result[tensor]:
            return True
        i = bisect_left(reads, at)
        return i < len(reads) and (until is None or reads[i] <= until)


def _lists(start: list[int], flat: list[int]) -> list[list[int]]:
    return [flat[start[i] : start[i + 1]] for i in range(len(start) - 1)]
