"""A sequence of runs and copies from the answer of several cuts: a start for the search.

The answer knows what runs again and what is copied in each window, but no order: repeated runs and
copies back stand as late as a reader in the window allows, copies to the host as early as they can.
The sequence may not fit the budget.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ..graphs._cut_table import Bools
from ..graphs._milp import Floats, Ints
from ._window_model import Between, WindowProgram


def answer_tokens(program: WindowProgram, x: Floats) -> Ints:
    """The runs and copies of the answer `x`, as tokens of ``_timeline``."""
    sequence = _Sequence(program, x)
    sequence.part(0, program.starts[0].following, program.outs[0], None)
    for k, (start, end) in enumerate(zip(program.starts, program.ends, strict=True)):
        sequence.part(start.following, end.following, program.outs[2 * k + 1], None)
        last = k + 1 == len(program.starts)
        following = program.graph.num_ops if last else program.starts[k + 1].following
        sequence.part(end.following, following, program.outs[2 * k + 2], program.windows[k])
    return np.array(sequence.tokens, dtype=np.int64)


class _Sequence:
    """Adds one part of the step after the other."""

    def __init__(self, program: WindowProgram, x: Floats) -> None:
        self.graph, self.table, self.x = program.graph, program.table, x
        self.arrays = program.graph.arrays
        self.num_tensors = self.arrays.tensor_bytes.size
        self.leaves = sum(x[out] for out in program.outs) > 0.5
        self.gone = np.zeros(self.num_tensors, dtype=np.bool_)
        self.tokens: list[int] = []

    def part(self, first: int, following: int, out: Ints, window: Between | None) -> None:
        """The first runs from `first` on, what runs again and comes back, and what goes."""
        goes = self.leaves & ~self.gone & (self.x[out] > 1e-6)
        self.gone |= goes
        made = self.arrays.tensor_producer >= first
        self._copy_out(goes & ~made)
        before = self._before(first, following, window)
        for op in range(first, following):
            self.tokens += [*before[op], op]
            self._copy_out(goes & (self.arrays.tensor_producer == op))
        self.tokens += before[following]

    def _copy_out(self, goes: Bools) -> None:
        self.tokens += (self.graph.num_ops + np.flatnonzero(goes)).tolist()

    def _before(
        self, first: int, following: int, window: Between | None
    ) -> defaultdict[int, list[int]]:
        """The copies back and repeated runs that stand before each first run of a window."""
        found: defaultdict[int, list[int]] = defaultdict(list)
        if window is None:
            return found
        arrays = self.arrays
        needed = np.full(self.num_tensors, following)
        inside = (self.table.readers >= first) & (self.table.readers < following)
        np.minimum.at(needed, arrays.read_tensor[inside], self.table.readers[inside])
        again = (window.again >= 0) & (self.x[np.maximum(window.again, 0)] > 0.5)
        runs = []
        for op in np.flatnonzero(again)[::-1].tolist():
            writes = arrays.write_tensor[arrays.write_start[op] : arrays.write_start[op + 1]]
            at = int(needed[writes].min(initial=following))
            reads = arrays.read_tensor[arrays.read_start[op] : arrays.read_start[op + 1]]
            needed[reads] = np.minimum(needed[reads], at)
            runs.append((at, op))
        for tensor in np.flatnonzero(self.gone & (self.x[window.back] > 0.5)).tolist():
            token = self.graph.num_ops + self.num_tensors + tensor
            found[int(needed[tensor])].append(token)
        for at, op in reversed(runs):
            found[at].append(op)
        return found
