"""What must be in memory before an op can run, found by going back from the op.

Take any schedule, a moment in it, and a set S of tensors that are alive then. Go back to the
latest run that writes a tensor of S. While it runs, the rest of S is alive beside what it reads
and writes; just before it, the rest of S and what it reads are alive. So going back from the first
run of an op, or from the end of the step, where all results are alive, every schedule walks
through such sets, down to one that no op writes. Which op is the latest is the schedule's choice;
the walk whose largest run is smallest bounds the peak of all schedules from below. In a graph of
which nothing has to outlive its readers, it is the least memory itself.

The walk is found by a search in the order of the largest run so far, so that a search that is
stopped has proven the size that it has come to.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.footprint import least_own_bytes, own_bytes
from schedsim.dataflow.graph import Graph
from schedsim.plans.effort import Effort

# How many ops are looked at, those that need most first, and how many sets for each of them. The
# next step follows where the one before has come so close to the budget.
_STEPS = ((200, 8), (32, 128), (4, 2048), (1, 16384))
_CLOSE = 0.75
# Before that, so many ops are looked at with tensors of that share of the budget alone: a few such
# tensors that must meet are seen at once, where all the ways to remake light ones hide them.
_HEAVY_OPS, _HEAVY_SETS, _HEAVY = 16, 32, 0.1
# From the end, where gradients wait for the last one, such a search proves most, and which share is
# best depends on the step: these are tried, with so many sets each. More sets prove a few percent
# more.
_END_SHARES, _END_SETS, _END_CLOSE = (0.03, 0.01, 0.003), (64, 1024, 16384), 0.9

# Sets of a few tensors, and ways from a set to one before it, that a core goes through in about a
# second; and the share of what is left for one step. A set has a way for each op that wrote of it.
_SETS_PER_UNIT, _WAYS_PER_UNIT, _SHARE = 20_000.0, 150_000.0, 0.25

_FEW_BITS = 512

END = -1
"""The end of the step, in place of the op that a proof goes back from."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """What is proven about the peak of every schedule.

    Attributes
    ----------
    op
        The op that the proof goes back from; `END` for the results at the end of the step.
    least_bytes
        Every schedule has a peak of at least this.
    exact
        Whether the search has come to its end.
    num_sets
        Sets gone through.
    """

    op: int
    least_bytes: int
    exact: bool = False
    num_sets: int = 0


@dataclass(frozen=True, eq=False)
class FirstRuns:
    """What is alive during the first run of each op; sets of tensors are the bits of integers.

    While an op runs for the first time, these are alive besides static bytes: its inputs, outputs
    and workspace; graph inputs that the op or a descendant reads, or that are results; and tensors
    that its ancestors which run only once have written for its descendants or as results.

    Attributes
    ----------
    lasting : list of int
        Tensors that cannot be recomputed.
    across : list of int
        For each op, those of `lasting` that are alive, as bits in the order of that list.
    need_bytes : list of int
        For each op, the sum, without static bytes.
    """

    lasting: list[int]
    across: list[int]
    need_bytes: list[int]


def first_runs(graph: Graph) -> FirstRuns:
    """What is alive during first runs; cached with the graph, because it is a function of it.

    Notes
    -----
    O(ops + reads), times the number of graph inputs and outputs of ``once`` ops over 64.
    """
    kept: dict[str, FirstRuns] = graph.__dict__
    if "_first_runs" not in kept:
        kept["_first_runs"] = _find_first_runs(graph)
    return kept["_first_runs"]


def _find_first_runs(graph: Graph) -> FirstRuns:
    arrays = graph.arrays
    sizes, producer_of = arrays.tensor_bytes.tolist(), arrays.tensor_producer.tolist()
    lasting = np.flatnonzero(
        (arrays.tensor_producer < 0) | arrays.op_once[arrays.tensor_producer]
    ).tolist()
    bit = {t: 1 << k for k, t in enumerate(lasting)}
    reads, writes = _split(arrays.read_tensor, arrays.read_start), _written(graph)
    needs_ops = [[producer_of[t] for t in one if producer_of[t] >= 0] for one in reads]
    read = [sum(bit[t] for t in one if t in bit) for one in reads]
    wrote = [sum(bit[t] for t in one if t in bit) for one in writes]
    results = sum(bit[t] for t in lasting if arrays.tensor_result[t])
    inputs = sum(bit[t] for t in lasting if producer_of[t] < 0)
    across = [0] * graph.num_ops
    if lasting:
        written = [inputs] * graph.num_ops  # written by ancestors, and graph inputs
        for i, needed in enumerate(needs_ops):
            for before in needed:
                written[i] |= written[before] | wrote[before]
        wanted = [results] * graph.num_ops  # read by descendants, and results
        for i in range(graph.num_ops - 1, -1, -1):
            all_wanted = wanted[i] | read[i]
            for before in needs_ops[i]:
                wanted[before] |= all_wanted
        across = [one & other for one, other in zip(written, wanted, strict=True)]
    need_bytes = own_bytes(graph).tolist()
    seen: dict[int, int] = {0: 0}
    for i, beside in enumerate(one & ~own for one, own in zip(across, read, strict=True)):
        if beside not in seen:
            seen[beside] = sum(sizes[lasting[k]] for k in _members(beside))
        need_bytes[i] += seen[beside]
    for t in np.flatnonzero((arrays.tensor_takes_over >= 0) & ~arrays.tensor_optional).tolist():
        op, source = producer_of[t], int(arrays.tensor_takes_over[t])
        if not bit.get(source, 0) & across[op]:
            need_bytes[op] -= min(sizes[t], sizes[source])
    return FirstRuns(lasting, across, need_bytes)


class NeedSearch:
    """The searches for the ops of one graph; sets of tensors are the bits of integers.

    With `heavy_bytes`, a set holds tensors of so many bytes alone. What else must be there is left
    out, so that needs are no larger than they are.
    """

    def __init__(self, graph: Graph, heavy_bytes: int = 0) -> None:
        arrays = graph.arrays
        self.static_bytes = graph.static_bytes
        self.first = first_runs(graph)
        self.sizes = arrays.tensor_bytes.tolist()
        self.producer = arrays.tensor_producer.tolist()
        self.own = least_own_bytes(graph).tolist()
        self.read = _split(arrays.read_tensor, arrays.read_start)
        self.written = _written(graph)
        heavy = [[t for t in part if self.sizes[t] >= heavy_bytes] for part in self.read]
        self.whole = not heavy_bytes
        self.heavy = _mask(np.flatnonzero(arrays.tensor_bytes >= heavy_bytes).tolist())
        self.reads = [_mask(part) for part in heavy]
        self.writes = [_mask(part) for part in self.written]
        self.read_bytes = [sum([self.sizes[t] for t in part]) for part in heavy]
        self.inputs = _mask(np.flatnonzero(arrays.tensor_producer < 0).tolist())
        self.results = _mask(np.flatnonzero(arrays.tensor_result).tolist())
        workspace = np.minimum(arrays.op_workspace_bytes, arrays.op_saving_workspace_bytes)
        self.most_freed = max(0, -int(workspace.min()))

    def bytes_of(self, tensors: int) -> int:
        """The bytes of a set of tensors."""
        return sum(self.sizes[tensor] for tensor in _members(tensors))

    def need(
        self, op: int, most_sets: int, enough_bytes: int, effort: Effort | None = None
    ) -> MemoryNeed:
        """The least peak of any way to the first run of `op`, or to the `END`.

        The search ends after `most_sets`, where more than `enough_bytes` are proven, or with
        `effort`, which it spends.
        """
        if op == END:
            # Which op runs last is open: it may be one that frees memory while it runs.
            start, need_bytes = self.results, self.bytes_of(self.results) - self.most_freed
        else:
            start, need_bytes = self.reads[op], self.first.need_bytes[op]
            start |= _mask(self.first.lasting[k] for k in _members(self.first.across[op]))
        start &= self.heavy
        heap = [(need_bytes, self.bytes_of(start), start)]
        known = {start: need_bytes}  # for each set, the least yet of ways to it
        num_sets = 0
        while True:
            largest, size, alive = heapq.heappop(heap)
            if largest > known[alive]:
                continue
            least_bytes, done = self.static_bytes + largest, not alive & ~self.inputs
            if done or num_sets == most_sets or least_bytes > enough_bytes:
                return MemoryNeed(op, least_bytes, done and self.whole, num_sets)
            if effort is not None and effort.is_over():
                return MemoryNeed(op, least_bytes, done, num_sets)
            num_sets += 1
            num_ways = 0
            for run_bytes, before_bytes, before in self._before(alive, size):
                num_ways += 1
                way = max(largest, run_bytes)
                if way < known.get(before, way + 1):
                    known[before] = way
                    heapq.heappush(heap, (way, before_bytes, before))
            if effort is not None:
                effort.spend(num_ways / _WAYS_PER_UNIT)

    def _before(self, alive: int, size: int) -> Iterator[tuple[int, int, int]]:
        """For each op that may have run last: bytes during its run, and the set before it."""
        for op in sorted({self.producer[tensor] for tensor in _members(alive & ~self.inputs)}):
            reads = self.reads[op]
            rest = alive & ~self.writes[op]
            sizes = self.sizes
            rest_bytes = size - sum([sizes[t] for t in self.written[op] if alive >> t & 1])
            beside_bytes = rest_bytes - sum([sizes[t] for t in self.read[op] if rest >> t & 1])
            run_bytes = self.own[op] + beside_bytes
            yield run_bytes, beside_bytes + self.read_bytes[op], rest | reads


def largest_need(graph: Graph, budget_bytes: int, effort: Effort) -> MemoryNeed:
    """The largest need of an op that is proven; the search ends where nothing fits the budget.

    Which ops are looked at, and how far, is a matter of the effort, and of how close the budget is
    to what is known; what is proven holds anyhow, over schedules in any order.

    Notes
    -----
    O(tensors alive and what their ops read) for a set.
    """
    search = NeedSearch(graph)
    static_bytes = graph.static_bytes
    needs = [MemoryNeed(op, static_bytes + n) for op, n in enumerate(search.first.need_bytes)]
    if search.results:
        needs.append(search.need(END, 0, budget_bytes))
    _look_at_heavy(graph, needs, budget_bytes)
    _look_back_from_end(graph, needs, budget_bytes, effort)
    for num_ops, most_sets in _STEPS:
        needs.sort(key=lambda need: (-need.least_bytes, need.op))
        if not _CLOSE * budget_bytes <= needs[0].least_bytes <= budget_bytes:
            break
        some = [k for k, need in enumerate(needs) if not need.exact][:num_ops]
        if not effort.allows(len(some) * most_sets / _SETS_PER_UNIT / _SHARE):
            break
        with effort.part(_SHARE) as part:
            for k in some:
                found = search.need(needs[k].op, most_sets, budget_bytes, part)
                if found.least_bytes >= needs[k].least_bytes:  # heavy tensors may prove more
                    needs[k] = found
                if needs[k].least_bytes > budget_bytes:
                    return needs[k]
                if part.is_over():
                    return max(needs, key=lambda need: need.least_bytes)
    return max(needs, key=lambda need: need.least_bytes)


def _look_at_heavy(graph: Graph, needs: list[MemoryNeed], budget_bytes: int) -> None:
    """Raise the needs of a few ops by what the heavy tensors before them need."""
    heavy_bytes = max(1, int(_HEAVY * budget_bytes))
    if np.count_nonzero(graph.arrays.tensor_bytes >= heavy_bytes) < 3:
        return
    search = NeedSearch(graph, heavy_bytes)
    order = sorted(range(len(needs)), key=lambda k: (-needs[k].least_bytes, needs[k].op))
    for k in order[:_HEAVY_OPS]:
        found = search.need(needs[k].op, _HEAVY_SETS, budget_bytes)
        if found.least_bytes > needs[k].least_bytes:
            needs[k] = found


def _look_back_from_end(
    graph: Graph, needs: list[MemoryNeed], budget_bytes: int, effort: Effort
) -> None:
    """Raise the need of the end, the last of `needs`, by what tensors that are not light need."""
    if needs[-1].op != END:
        return
    searches = [NeedSearch(graph, max(1, int(s * budget_bytes))) for s in _END_SHARES]
    for most_sets in _END_SETS:
        work = len(searches) * most_sets / _SETS_PER_UNIT
        least = max(need.least_bytes for need in needs)
        close = most_sets == _END_SETS[0] or least >= _END_CLOSE * budget_bytes
        if least > budget_bytes or not close or not effort.allows(work / _SHARE):
            return
        with effort.part(_SHARE) as part:
            for search in searches:
                found = search.need(END, most_sets, budget_bytes, part)
                if found.least_bytes > needs[-1].least_bytes:
                    needs[-1] = found
                if found.least_bytes > budget_bytes or part.is_over():
                    return


def _split(items: NDArray[np.int64], start: NDArray[np.int64]) -> list[list[int]]:
    flat, ends = items.tolist(), start.tolist()
    return [flat[low:high] for low, high in pairwise(ends)]


def _written(graph: Graph) -> list[list[int]]:
    arrays = graph.arrays
    return _split(arrays.write_tensor, arrays.write_start)


def _mask(tensors: Iterable[int]) -> int:
    found = 0
    for tensor in tensors:
        found |= 1 << tensor
    return found


def _members(tensors: int) -> Iterable[int]:
    """The numbers in a set, ascending; O(its largest number)."""
    length = tensors.bit_length()
    if length <= _FEW_BITS:
        return _one_by_one(tensors)
    octets = np.frombuffer(tensors.to_bytes(length // 8 + 1, "little"), np.uint8)
    found: list[int] = np.flatnonzero(np.unpackbits(octets, bitorder="little")).tolist()
    return found


def _one_by_one(tensors: int) -> Iterator[int]:
    """The same for small sets: each number costs a pass over the bits."""
    while tensors:
        low = tensors & -tensors
        yield low.bit_length() - 1
        tensors ^= low
