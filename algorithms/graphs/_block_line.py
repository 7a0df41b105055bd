"""Schedules of a line of blocks with options, from the recurrence to runs of the whole graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedsim.plans.effort import Effort
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import Simulation, simulate

from ..chains._recurrence import find_classes
from ._block_options import BlockClass, block_classes
from ._block_recurrence import (
    BACKWARD,
    FORWARD,
    INFINITE,
    PLAIN,
    BlockRows,
    needed_runs,
    solve_rows,
    trace_rows,
)
from ._graph_blocks import BlockLine

MOST_SLOTS = 4000

_WORK = 1e9
"""Most sums taken by one solution of the recurrence, about a second."""

_ROOM = 1.2
"""Share of the budget up to which the recurrence is solved: it counts more than a replay does."""


@dataclass(frozen=True)
class SolvedLine:
    """A line of blocks with the options of each kind; plans for any budget come from it.

    Examples
    --------
    >>> from schedsim import Chain, Schedule
    >>> from schedsim.algorithms.graphs._graph_blocks import find_blocks
    >>> chain = Chain.from_arrays("twelve", 1, forward_s=[1] * 12, backward_s=[1] * 12,
    ...                           output_bytes=[1] * 12, saved_bytes=[1] * 12)
    >>> from schedsim.plans.effort import Effort
    >>> line = SolvedLine.of(find_blocks(chain.graph), effort=Effort(0.01), seed=0)
    >>> [s.peak_bytes for s in line.schedules(10)][:1]
    [10]
    """

    line: BlockLine
    classes: dict[int, BlockClass]

    @classmethod
    def of(cls, line: BlockLine, *, effort: Effort, seed: int) -> SolvedLine:
        """The line, with each kind of its blocks solved for about `effort`."""
        return cls(line, block_classes(line, effort=effort, seed=seed))

    @cached_property
    def _rows(self) -> Any:
        kinds = self.line.kinds
        return find_classes(kinds, np.zeros(kinds.size, dtype=np.int64))

    @property
    def work(self) -> float:
        """About the work that `schedules` takes: solutions of the recurrence, and replays."""
        _, row_block, row_length = self._rows
        sums = MOST_SLOTS * (float(row_length.sum()) + 24.0 * row_block.size)
        return float(min(_WORK, sums)) / _WORK + self.line.graph.num_ops / 1e5

    def schedules(self, budget_bytes: int, *, num_tries: int = 12) -> list[Simulation]:
        """Replayed schedules at and near a budget: those that fit first, and of them the fastest.

        The recurrence rounds to slots and charges inputs for longer than they live, so that its own
        count of memory does not decide; how much it may use is searched for, with a replay each.
        """
        arrays = self.line.graph.arrays
        room = budget_bytes - self.line.outside_bytes
        row_of, row_block, row_length = self._rows
        work = float(row_length.sum()) + 24.0 * row_block.size
        num_slots = int(min(MOST_SLOTS, max(100.0, _WORK / work)))
        problem = self._in_slots(max(room, 1) * _ROOM / num_slots)
        rows = BlockRows(*problem, row_of, row_block, row_length)  # type: ignore[call-arg]
        table = solve_rows(rows, num_slots)
        whole = table[row_of[0, row_of.shape[0]]]
        feasible = np.flatnonzero(whole < INFINITE)
        if not feasible.size:
            return []
        low, high = int(feasible[0]), num_slots
        at = min(max(int(num_slots / _ROOM), low), high)
        found: dict[int, Simulation] = {}
        for _ in range(num_tries):
            steps = trace_rows(rows, table, at)
            runs = self._runs(steps, problem[0])
            needed = needed_runs(runs, arrays)
            schedule = Schedule(self.line.graph.op_names, runs[needed])
            found[at] = simulate(self.line.graph, schedule)
            if found[at].peak_bytes <= budget_bytes:
                low = at + 1
            else:
                high = at - 1
            if low > high:
                break
            # The first steps are short ones about the budget.
            at = (low + high) // 2
        fits = [s for s in found.values() if s.peak_bytes <= budget_bytes]
        others = [s for s in found.values() if s.peak_bytes > budget_bytes]
        fits.sort(key=lambda s: (s.makespan_s, s.peak_bytes))
        others.sort(key=lambda s: s.peak_bytes)
        return fits + others

    def _in_slots(self, slot_bytes: float) -> Any:
        line = self.line
        num = len(line.blocks)
        of_block = [self.classes[block.kind] for block in line.blocks]
        start = np.zeros(num + 1, dtype=np.int64)
        np.cumsum([len(one.options) for one in of_block], out=start[1:])
        options = [option for one in of_block for option in one.options]
        sizes = line.graph.arrays.tensor_bytes

        def slots(values: list[int]) -> NDArray[np.int64]:
            return np.rint(np.array(values, dtype=np.float64) / slot_bytes).astype(np.int64)

        x = [int(sizes[block.inputs].sum()) for block in line.blocks]
        d = [0] + [int(sizes[block.gradients_in].sum()) for block in line.blocks]
        # Each block is rounded by itself: equal blocks share rows, and must be equal in slots too.
        results = np.zeros(num + 1, dtype=np.int64)
        np.cumsum(slots([block.result_bytes for block in line.blocks]), out=results[1:])
        return (
            start,
            np.array([option.time_s for option in options]),
            slots([option.kept_bytes for option in options]),
            slots([option.forward_bytes for option in options]),
            slots([option.backward_bytes for option in options]),
            np.array([one.plain_s for one in of_block]),
            slots([one.plain_bytes for one in of_block]),
            slots(x),
            slots(d),
            results,
        )

    def _runs(self, steps: NDArray[np.int64], option_start: NDArray[np.int64]) -> Any:
        parts = []
        for what, index, option in steps.tolist():
            block = self.line.blocks[index]
            one = self.classes[block.kind]
            if what == PLAIN:
                late = np.flatnonzero(block.ops < 0)
                parts.append(block.ops[: int(late[0])])
                continue
            chosen = one.options[option - int(option_start[index])]
            half = {FORWARD: chosen.forward, BACKWARD: chosen.backward}[what]
            parts.append(block.ops[half])
        return np.concatenate(parts)
