"""A search that plans some ops anew at a time, by an integer program, while all others stay.

A schedule in which no single move helps may be improved by one that moves many runs at once: an op
is kept, for which several small ones are made again, whose readers run elsewhere. So all runs of
some ops, most of which are repeated now, are taken out, and these ops are offered wherever a repeat
may be of use; the solver says which of the offers are taken. This is a large neighbourhood search
(P. Shaw, Using constraint programming and local search methods to solve vehicle routing problems,
1998).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph
from schedsim.plans.effort import Effort

from ._freed_choices import solve_freed
from ._merged_model import MergedModel
from ._offered_runs import offered_runs
from ._program_search import Ints, ProgramSearch

Bools = NDArray[np.bool_]

# How many ops are planned anew at first; where the solver ends within its first node and the
# program is no larger than so many non-zeros, the next one has more, and else fewer.
_FIRST_OPS, _FEWEST_OPS, _MORE, _FEWER, _NONZEROS = 8.0, 4, 1.1, 0.85, 20_000
# Where so many programs in a row have changed nothing, the next ones may be twice as large, and
# after so many times the search ends.
_IDLE, _DOUBLED = 50, 3
# Shares of them: that are repeated now; of the others, that stand beside these in the graph.
_REPEATED, _BESIDE = 0.67, 0.5
# The share of the gaps that are open beside those that repeat something and those in front of what
# reads one of the ops.
_OPEN = 0.03
# A better point saves at least that share of what the free choices cost.
_LEAST_GAIN = 1e-4
# The work of a program: at least; for so many non-zeros of one that is solved in the first node
# while all are; by that number and its cube of one that is where others are not; and by its square
# of one that is not.
_LEAST_WORK, _EASY, _SOLVED, _CUBE, _LIMITED = 0.012, 0.04, 0.1, 0.045, 0.8


class ReplanSearch(ProgramSearch):
    """The search; first runs keep the graph's order.

    It has no program left that may find more where many in a row have changed nothing, the last of
    them large ones, or where the model charges more than the simulator and has no room.
    """

    def __init__(self, graph: Graph, budget_bytes: int, line: Ints, *, seed: int) -> None:
        super().__init__(graph, budget_bytes, line, seed=seed)
        self._makes, self._reads = _neighbours(graph)
        self._last_use = _last_use(self._makes)
        useful = self._last_use > np.arange(graph.num_ops)
        self._useful = np.flatnonzero(useful & ~graph.arrays.op_once)
        self._num_ops = _FIRST_OPS

    def go_on_from(self, other: ReplanSearch) -> None:
        """Go on from the schedule of `other`, if that is faster."""
        if other.best_s < self.best_s:
            self._go_on(other.best_runs, other.best_s)

    def _solve_next(self, effort: Effort) -> float:
        most = _NONZEROS << self._idle // _IDLE
        self._idle += 1
        self.is_done = self._idle == _IDLE * _DOUBLED
        ops = self._drawn()
        runs, ours = self._offered(ops)
        model = MergedModel.of(self.graph, self.budget_bytes, runs)
        x = model.point(ours)
        if not model.fits(x):
            self.is_done = True
            return _LEAST_WORK
        free = self._free(model, ops)
        if not free.size:
            return _LEAST_WORK
        found = solve_freed(model, x, free, effort.watchdog_s, _LEAST_GAIN)
        if found.values is not None:
            x[free] = found.values
            self._take(runs[x[: runs.size] > 0.5])
        grows = found.is_solved and found.nonzeros <= most
        self._num_ops *= _MORE if grows else _FEWER
        self._num_ops = min(max(self._num_ops, _FEWEST_OPS), self.graph.num_ops)
        self._is_hard |= not found.is_solved
        return self._work(found.nonzeros / _NONZEROS, found.is_solved)

    def _work(self, size: float, is_solved: bool) -> float:
        """The work of a program of that size."""
        if not is_solved:
            return max(_LEAST_WORK, _LIMITED * size**2)
        if self._is_hard:
            return max(_LEAST_WORK, _SOLVED * size + _CUBE * size**3)
        return max(_LEAST_WORK, _EASY * size)

    def _drawn(self) -> Ints:
        """Some ops, in ascending order: repeated ones, what is beside them, and any."""
        random, count = self._random, int(self._num_ops)
        runs = np.bincount(self.best_runs, minlength=self.graph.num_ops)
        repeated, many = np.flatnonzero(runs > 1), round(_REPEATED * count)
        if repeated.size > many:
            if random.random() < 0.5:
                near = np.abs(repeated - random.choice(repeated)) + random.random(repeated.size)
                repeated = repeated[np.argsort(near)[:many]]
            else:
                repeated = random.choice(repeated, many, replace=False)
        chosen = dict.fromkeys(repeated.tolist())
        beside = np.unique([v for u in chosen for v in (*self._makes[u], *self._reads[u])])
        beside = random.permutation(np.intersect1d(beside, self._useful))
        few = round(_BESIDE * (count - len(chosen)))
        chosen |= dict.fromkeys(beside.tolist()[:few])
        more = random.permutation(self._useful)[: max(0, count - len(chosen))]
        return np.unique([*chosen, *more]).astype(np.int64)

    def _offered(self, ops: Ints) -> tuple[Ints, Bools]:
        """The schedule with the offers, and which of its runs are the schedule's."""
        num_ops, line = self.graph.num_ops, self.best_runs
        is_open = self._random.random(num_ops) < _OPEN
        firsts = np.zeros(line.size, dtype=np.bool_)
        firsts[np.unique(line, return_index=True)[1]] = True
        gaps = np.cumsum(firsts)[~firsts]
        is_open[gaps[gaps < num_ops]] = True
        for op in ops:
            is_open[self._makes[op]] = True
        runs = np.empty(line.size + ops.size * int(is_open.sum()), dtype=np.int64)
        ours = np.empty(runs.size, dtype=np.bool_)
        count = offered_runs(line, ops, self._last_use, is_open, runs, ours)
        return runs[:count].copy(), ours[:count].copy()

    def _free(self, model: MergedModel, ops: Ints) -> Ints:
        """The variables of these ops' runs, and of how long what they write or read is kept."""
        free = np.zeros(self.graph.num_ops + 1, dtype=np.bool_)
        free[ops] = True
        kept = free.copy()
        kept[-1] = True  # the graph's inputs
        for op in ops:
            kept[self._reads[op]] = True
        is_run = np.arange(model.op.size) < model.runs.size
        chosen = np.where(is_run, free[model.op], kept[model.op])
        return np.flatnonzero(chosen & (model.lb < model.ub))


def _neighbours(graph: Graph) -> tuple[list[list[int]], list[list[int]]]:
    """The ops that read what each op writes, and those that write what it reads."""
    arrays = graph.arrays
    makes: list[list[int]] = [[] for _ in range(graph.num_ops)]
    reads: list[list[int]] = [[] for _ in range(graph.num_ops)]
    for op in range(graph.num_ops):
        of_op = arrays.read_tensor[arrays.read_start[op] : arrays.read_start[op + 1]]
        for maker in np.unique(arrays.tensor_producer[of_op]).tolist():
            if maker >= 0:
                makes[maker].append(op)
                reads[op].append(maker)
    return makes, reads


def _last_use(makes: list[list[int]]) -> Ints:
    """The last op that is made from each op, directly or not; the op itself where none is."""
    last = np.arange(len(makes), dtype=np.int64)
    for op in reversed(range(len(makes))):
        for reader in makes[op]:
            last[op] = max(last[op], last[reader])
    return last
