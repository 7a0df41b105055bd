"""The blocks of a training step, found by structure: a line of pieces that few tensors join.

The forward part is cut where few of its tensors are read later on by forward ops (the residual
stream of a transformer, the output of a convolutional block). A cut is used where the rest of the
step can be cut to match: before the border only ops that read nothing forward that the blocks below
keep to themselves, behind it only ops that read nothing of the blocks above.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.arrays import GraphArrays
from schedsim.dataflow.graph import PHASES, Graph, Op
from schedsim.errors import UnsupportedError

from ._forward_part import forward_part

Ints = NDArray[np.int64]

MOST_CROSSING = 4
"""Most tensors that may cross a cut of a line."""

MOST_CARRIED = 16
"""Most crossing tensors where fewer leave blocks too large: skips that the line carries along."""

MOST_BLOCKS = 200
"""Blocks are merged until at most about this many are left: the program over them is cubic."""

_LONGEST_PERIOD = 8
_FEWEST_PERIODS = 3
_MANY_PERIODS = 12

REST = "rest of the step"


@dataclass(frozen=True)
class GraphBlock:
    """A piece of the line: a range of forward ops, and the range of later ops that belongs to it.

    Attributes
    ----------
    ops : (num_ops,) int64
        Ops of the graph in the block's own order; -1 stands for the run of all blocks after it.
    inputs, outputs : (num,) int64
        Forward tensors that cross the block's two cuts, by index.
    gradients_in, gradients_out : (num,) int64
        Tensors written after the forward part, results excepted, that come in from the blocks
        after this one and go out to the blocks before it.
    result_bytes : int
        Bytes of results that its backward part writes: they stay to the end.
    kind : int
        Number that is equal for blocks of equal structure, times and sizes.
    """

    ops: Ints
    inputs: Ints
    outputs: Ints
    gradients_in: Ints
    gradients_out: Ints
    result_bytes: int
    kind: int


@dataclass(frozen=True)
class BlockLine:
    """The blocks of a graph, first to last.

    Attributes
    ----------
    outside_bytes : int
        Bytes charged throughout: static bytes, graph inputs, results of the forward part.
    """

    graph: Graph
    blocks: tuple[GraphBlock, ...]
    outside_bytes: int

    @property
    def kinds(self) -> Ints:
        """The kind of each block, ``(num_blocks,)``."""
        return np.array([block.kind for block in self.blocks], dtype=np.int64)

    @cached_property
    def first_of_kind(self) -> dict[int, int]:
        """Kind -> index of its first block."""
        found: dict[int, int] = {}
        for i, block in enumerate(self.blocks):
            found.setdefault(block.kind, i)
        return found

    def subgraph(self, index: int) -> Graph:
        """Block `index` as a graph of its own, with its ops in the block's order.

        Tensors that come in are there from the start and have no size, because they are charged
        elsewhere. One op stands for all later blocks: it reads the block's outputs and writes their
        gradients. Tensors that go out live to the end.
        """
        return _subgraph(self.graph, self.blocks[index], f"block {index}")


def find_blocks(graph: Graph) -> BlockLine:
    """The line of blocks of `graph`; O(ops + tensors + reads).

    Of the limits on crossing tensors up to `MOST_CARRIED`, the function takes the least for which
    no block holds more than a quarter of the forward ops.

    Raises
    ------
    UnsupportedError
        Fewer than three blocks are found.

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("twelve", 1, forward_s=[1] * 12, backward_s=[1] * 12,
    ...                           output_bytes=[1] * 12, saved_bytes=[1] * 12)
    >>> find_blocks(chain.graph).kinds.tolist()
    [0, 1, 2]
    """
    arrays = graph.arrays
    part = forward_part(arrays)
    num_forward, num_ops = part.num_ops, graph.num_ops
    if not 0 < num_forward < num_ops:
        raise _no_line(graph, 1)
    last_read = _last_forward_read(arrays, num_forward)
    borders, lows, highs = _backward_ranges(arrays, num_forward, last_read)
    made = np.flatnonzero(part.made)
    starts, ends = arrays.tensor_producer[made], last_read[made]
    count = _covering(starts, ends, np.ones(made.size, np.int64), num_forward)
    weight = _covering(starts, ends, arrays.tensor_bytes[made], num_forward)
    least_ops = max(4, num_forward // MOST_BLOCKS)
    found: list[tuple[int, Ints]] = []
    for most in range(1, MOST_CARRIED + 1):
        fit = np.flatnonzero((count[:num_forward] <= most) & (lows <= highs)[:num_forward])
        cuts = _thinned(fit[fit > 0], weight, least_ops, num_forward)
        largest = int(np.diff(np.concatenate([[0], cuts, [num_forward]])).max())
        # A tensor that is carried far costs memory everywhere: only where it divides the graph
        # well.
        if most <= MOST_CROSSING or largest <= num_forward // 2:
            found.append((largest, cuts))
        if cuts.size >= 2 and largest <= max(24, num_forward // 4):
            break
    cuts = min(found, key=lambda pair: pair[0])[1]
    if cuts.size < 2:
        raise _no_line(graph, cuts.size + 1)
    line = _line(graph, num_forward, last_read, cuts, borders, lows, highs)
    periodic = _period_cuts(line.kinds)
    if 2 <= periodic.size < cuts.size:
        line = _line(graph, num_forward, last_read, cuts[periodic - 1], borders, lows, highs)
    return line


def _period_cuts(kinds: Ints) -> Ints:
    """Indices of the blocks at which to cut, so that a repeated sequence of kinds is one block.

    Options of whole layers can evict what crosses the cuts inside of the layer; options of half
    layers cannot. For the same reason two layers are one block where there are many layers.
    """
    num = kinds.size
    for period in range(1, min(_LONGEST_PERIOD, num // _FEWEST_PERIODS) + 1):
        same = np.concatenate([[False], kinds[:-period] == kinds[period:], [False]])
        edges = np.flatnonzero(np.diff(same.astype(np.int8)))
        begins, ends = edges[::2], edges[1::2]
        if begins.size == 0:
            continue
        longest = int(np.argmax(ends - begins))
        begin, end = int(begins[longest]), int(ends[longest]) + period
        if end - begin < max(_FEWEST_PERIODS * period, num // 2):
            continue
        if (end - begin) // period >= _MANY_PERIODS:
            period *= 2
        whole = (end - begin) // period * period
        inside = np.arange(begin, begin + whole, period)
        every = np.concatenate([np.arange(1, begin), inside, np.arange(begin + whole, num)])
        return every[every > 0]
    return np.arange(1, num)


def _no_line(graph: Graph, num_blocks: int) -> UnsupportedError:
    return UnsupportedError(
        f"{graph.name!r} is no line of blocks: cuts that at most {MOST_CARRIED} tensors cross"
        f" leave {num_blocks} of them",
        hint="--planner local_search takes any graph",
    )


def _last_forward_read(arrays: GraphArrays, num_forward: int) -> Ints:
    """The last forward op that reads a tensor, or its producer where none does."""
    last = arrays.tensor_producer.copy()
    end = arrays.read_start[num_forward]
    reader = np.repeat(np.arange(num_forward), np.diff(arrays.read_start[: num_forward + 1]))
    np.maximum.at(last, arrays.read_tensor[:end], reader)
    return last


def _covering(starts: Ints, ends: Ints, weights: Ints, size: int) -> Ints:
    """Sum of the weights of the intervals (start, end] that hold each position below size + 1."""
    change = np.zeros(size + 2, dtype=np.int64)
    np.add.at(change, starts + 1, weights)
    np.add.at(change, ends + 1, -weights)
    return np.cumsum(change)[: size + 1]


def _backward_ranges(
    arrays: GraphArrays, num_forward: int, last_read: Ints
) -> tuple[Ints, Ints, Ints]:
    """For each cut of the forward part, where the later ops may be cut to match.

    Returns the bytes that cross each border of the later ops, ``(num_ops + 1,)``, and per cut the
    first and the last border allowed, ``(num_forward + 1,)``.
    """
    num_ops = arrays.op_time_s.size
    begin = arrays.read_start[num_forward]
    reader = np.repeat(np.arange(num_forward, num_ops), np.diff(arrays.read_start[num_forward:]))
    read = arrays.read_tensor[begin:]
    forward = (arrays.tensor_producer[read] >= 0) & (arrays.tensor_producer[read] < num_forward)
    # A tensor of a block after the cut: its readers must lie before the border.
    after = np.full(num_forward + 1, num_forward - 1, dtype=np.int64)
    np.maximum.at(after, arrays.tensor_producer[read[forward]], reader[forward])
    lows = np.maximum.accumulate(after[::-1])[::-1] + 1
    # A tensor of a block before the cut that does not cross it: its readers must lie behind the
    # border.
    before = np.full(num_forward + 2, num_ops, dtype=np.int64)
    np.minimum.at(before, last_read[read[forward]] + 1, reader[forward])
    highs = np.minimum.accumulate(before)[: num_forward + 1]
    late = np.flatnonzero((arrays.tensor_producer >= num_forward) & ~arrays.tensor_result)
    last = arrays.tensor_producer.copy()
    np.maximum.at(last, read, reader)
    weight = _covering(arrays.tensor_producer[late], last[late], arrays.tensor_bytes[late], num_ops)
    return weight, lows, highs


def _thinned(candidates: Ints, weight: Ints, least_ops: int, num_forward: int) -> Ints:
    """Cuts at least `least_ops` apart; of near ones, those that the fewest bytes cross."""
    cuts: list[int] = []
    last, at = 0, 0
    while True:
        while at < candidates.size and candidates[at] < last + least_ops:
            at += 1
        if at == candidates.size:
            break
        near = [int(candidates[at])]
        for other in candidates[at + 1 :].tolist():
            if other >= last + 2 * least_ops:
                break
            near.append(other)
        last = min(near, key=lambda cut: (int(weight[cut]), cut))
        cuts.append(last)
    return np.array(cuts, dtype=np.int64)


def _line(
    graph: Graph,
    num_forward: int,
    last_read: Ints,
    cuts: Ints,
    border_weight: Ints,
    lows: Ints,
    highs: Ints,
) -> BlockLine:
    arrays = graph.arrays
    num_ops = graph.num_ops
    forward_cut = np.concatenate([[0], cuts, [num_forward]])
    border = np.full(forward_cut.size, num_ops, dtype=np.int64)
    border[-1] = num_forward
    for k in range(cuts.size, 0, -1):
        cut = int(forward_cut[k])
        low, high = max(int(lows[cut]), int(border[k + 1])), int(highs[cut])
        # As late as possible: an op that only adds to a gradient belongs to the block it came from.
        options = border_weight[low : high + 1]
        border[k] = high - int(np.argmin(options[::-1])) if options.size else low
    producer = arrays.tensor_producer
    last = producer.copy()
    np.maximum.at(
        last, arrays.read_tensor, np.repeat(np.arange(num_ops), np.diff(arrays.read_start))
    )
    late = (producer >= num_forward) & ~arrays.tensor_result
    early = (producer >= 0) & (producer < num_forward)
    crossing, gradients = [], []
    for k in range(forward_cut.size):
        inside = 0 < k < forward_cut.size - 1
        over = early & (producer < forward_cut[k]) & (last_read >= forward_cut[k])
        crossing.append(np.flatnonzero(over & inside))
        over = late & (producer < border[k]) & (last >= border[k])
        gradients.append(np.flatnonzero(over & inside))
    kinds: dict[Any, int] = {}
    blocks = []
    for k in range(forward_cut.size - 1):
        middle = [-1] if k < forward_cut.size - 2 else []
        ops = np.concatenate(
            [
                np.arange(forward_cut[k], forward_cut[k + 1]),
                np.array(middle, dtype=np.int64),
                np.arange(border[k + 1], border[k]),
            ]
        )
        of_block = (producer >= border[k + 1]) & (producer < border[k])
        results = int(arrays.tensor_bytes[of_block & arrays.tensor_result].sum())
        made = GraphBlock(
            ops, crossing[k], crossing[k + 1], gradients[k + 1], gradients[k], results, -1
        )
        kind = kinds.setdefault(_signature(graph, made), len(kinds))
        blocks.append(GraphBlock(**{**made.__dict__, "kind": kind}))
    outside = graph.static_bytes + sum(graph.inputs.values())
    outside += int(arrays.tensor_bytes[early & arrays.tensor_result].sum())
    return BlockLine(graph, tuple(blocks), outside)


def _outliving(graph: Graph, block: GraphBlock) -> Callable[[int], bool]:
    """Whether a tensor made in the block or handed to its backward part outlives the block."""
    arrays = graph.arrays
    handed_out = set(block.gradients_out.tolist())

    def lives_on(tensor: int) -> bool:
        late = arrays.op_phase[arrays.tensor_producer[tensor]] != 0
        return tensor in handed_out or bool(arrays.tensor_result[tensor] and late)

    return lives_on


def _signature(graph: Graph, block: GraphBlock) -> Any:
    """A value that is equal for two blocks that differ only in names."""
    arrays, lives_on = graph.arrays, _outliving(graph, block)
    number = {int(t): i for i, t in enumerate((*block.inputs, *block.gradients_in))}
    sizes = arrays.tensor_bytes
    lists: list[Any] = [
        tuple(sizes[block.inputs].tolist()),
        tuple(sizes[block.gradients_in].tolist()),
        tuple(number[t] for t in block.gradients_in.tolist() if lives_on(t)),
    ]
    for op in block.ops.tolist():
        if op < 0:
            lists.append(tuple(number.get(t, -1) for t in block.outputs.tolist()))
            continue
        reads = arrays.read_tensor[arrays.read_start[op] : arrays.read_start[op + 1]].tolist()
        writes = arrays.write_tensor[arrays.write_start[op] : arrays.write_start[op + 1]].tolist()
        for tensor in (*reads, *writes):
            number.setdefault(tensor, len(number))
        lists.append(
            (
                int(arrays.op_phase[op]),
                float(f"{arrays.op_time_s[op]:.9e}"),
                int(arrays.op_workspace_bytes[op]),
                int(arrays.op_saving_workspace_bytes[op]),
                bool(arrays.op_once[op]),
                tuple(number[t] for t in reads),
                tuple(
                    (
                        number[t],
                        int(sizes[t]),
                        bool(arrays.tensor_optional[t]),
                        number.get(int(arrays.tensor_takes_over[t]), -1),
                        lives_on(t),
                    )
                    for t in writes
                ),
            )
        )
    return tuple(lists)


def _subgraph(graph: Graph, block: GraphBlock, name: str) -> Graph:
    arrays, lives_on = graph.arrays, _outliving(graph, block)
    names = arrays.tensor_names
    ops: list[Op] = []
    known: set[str] = set()
    inputs: dict[str, int] = {}
    living: list[str] = []

    def come_in(tensors: tuple[str, ...]) -> None:
        for tensor in tensors:
            if tensor not in known:
                known.add(tensor)
                inputs[tensor] = 0

    come_in(tuple(names[t] for t in block.inputs.tolist()))
    for index in block.ops.tolist():
        if index < 0:
            reads = tuple(names[t] for t in block.outputs.tolist())
            come_in(reads)
            incoming = block.gradients_in.tolist()
            writes = {names[t]: int(arrays.tensor_bytes[t]) for t in incoming}
            ops.append(Op(REST, PHASES[1], reads=reads, writes=writes, once=True))
            living += [names[t] for t in incoming if lives_on(t)]
        else:
            op = graph.ops[index]
            come_in(op.reads)
            ops.append(op)
            made = arrays.write_tensor[arrays.write_start[index] : arrays.write_start[index + 1]]
            living += [names[t] for t in made.tolist() if lives_on(t)]
        known.update(ops[-1].writes)
    return Graph(name, tuple(ops), inputs, 0, tuple(living))
