"""Options of a block: ways to run it around the rest of the step, from the planners of graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph, Op
from schedsim.plans.effort import Effort
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

from ._graph_blocks import REST, BlockLine, GraphBlock
from ._seeds import dtr_seeds
from .bounds import least_memory_bytes
from .cuts import cuts
from .local_search import local_search

MOST_OPTIONS = 64

_NUM_KEPT = (10, 48)
"""Numbers of limits on kept bytes tried for a block that is unique, and for a repeated one."""

_KEPT_SHARES = (0.0, 0.1, 0.4)
_PEAK_SHARES = (0.02, 0.1, 0.4, 0.7)
"""Shares of the way from the least to store-all: limits for budgets near a block's own need."""

_SWEEP_SHARE = 0.6
_LEAST, _MOST = 0.02, 0.4


@dataclass(frozen=True)
class BlockOption:
    """One way to run a block; its input and what lies outside of the block are not counted.

    Attributes
    ----------
    forward, backward : (num_runs,) int64
        Ops in the block's own numbering, repeats included, before and after the later blocks run.
    time_s : float
        Seconds of both parts.
    kept_bytes : int
        Bytes alive while the later blocks run, the block's output included.
    forward_bytes, backward_bytes : int
        Most bytes alive in either part; in the second with the gradients that came in.
    """

    forward: NDArray[np.int64]
    backward: NDArray[np.int64]
    time_s: float
    kept_bytes: int
    forward_bytes: int
    backward_bytes: int

    def beats(self, other: BlockOption) -> bool:
        """Whether this option is at least as good as `other` in every respect."""
        return (
            self.time_s <= other.time_s
            and self.kept_bytes <= other.kept_bytes
            and self.forward_bytes <= other.forward_bytes
            and self.backward_bytes <= other.backward_bytes
        )


@dataclass(frozen=True)
class BlockClass:
    """Blocks of one kind: their options, and their forward that keeps nothing but the output.

    Attributes
    ----------
    options
        Options of which none beats another, the fastest first.
    plain_s, plain_bytes
        Time and peak of the forward that keeps nothing else, the output included.
    """

    options: tuple[BlockOption, ...]
    plain_s: float
    plain_bytes: int


def block_classes(line: BlockLine, *, effort: Effort, seed: int) -> dict[int, BlockClass]:
    """The class of each kind of block, for about `effort`; each kind is solved once.

    Repeated blocks get more of the effort, and what one kind leaves goes to the others. A kind
    whose turn comes when the time is up has store-all as its only option.
    """
    late = effort.out_of_time
    again = np.bincount(line.kinds) > 1
    weights = {kind: 3.0 if again[kind] else 1.0 for kind in line.first_of_kind}
    left = sum(weights.values())
    found = {}
    for kind, index in line.first_of_kind.items():
        share = weights[kind] / left
        left -= weights[kind]
        with effort.part(share) as part:
            found[kind] = _class_of(line, index, _NUM_KEPT[int(again[kind])], part, seed, late)
    return found


def _class_of(
    line: BlockLine,
    index: int,
    num_kept: int,
    effort: Effort,
    seed: int,
    late: Callable[[], bool],
) -> BlockClass:
    """The class of the block; the first replays of a setting are made however small the effort.

    `late` says whether the time of all blocks together is up: then they are not made either.
    """
    graph, block = line.subgraph(index), line.blocks[index]
    num_forward = _num_forward(graph, block)
    forward_only = replace(
        graph,
        ops=(*graph.ops[:num_forward], Op(REST, "loss", reads=_rest_reads(graph, num_forward))),
        results=(),
    )
    plain = simulate(forward_only, Schedule.store_all(forward_only))
    usual = measured_option(graph, Schedule.store_all(graph))
    options = [usual]
    if graph.ops[num_forward].name == REST:
        with effort.part(_SWEEP_SHARE) as part:
            options += _by_kept_bytes(graph, usual, num_kept, part, late)
    settings = list(_tight_settings(graph, usual))
    for i, (setting, peak_bytes) in enumerate(settings):
        if late() or (i and effort.is_over()):
            break
        with effort.part(1 / (len(settings) - i)) as part:
            tried = [
                Schedule(setting.op_names, found.runs)
                for found in dtr_seeds(setting, peak_bytes, effort=part)
            ]
            if peak_bytes >= least_memory_bytes(setting)[0] and part.allows(_LEAST):
                with part.take(_MOST) as own:
                    plan = local_search(
                        setting, peak_bytes, effort=own, seed=seed, num_threads=2, starts=tried[:1]
                    )
                tried += [plan.schedule] if plan.schedule is not None else []
        options += [measured_option(graph, schedule) for schedule in tried]
    return BlockClass(pareto(options), plain.makespan_s, plain.peak_bytes)


def _by_kept_bytes(
    graph: Graph, usual: BlockOption, num_kept: int, effort: Effort, late: Callable[[], bool]
) -> Iterator[BlockOption]:
    """Options that keep less than store-all, for limits from a coarse grid to a fine one.

    The rest of the step is then the tightest op by far, a case in which `cuts` is exact at once.
    """
    rest = next(op for op in graph.ops if op.name == REST)
    output = sum(_size(graph, tensor) for tensor in rest.reads)
    peak_bytes = 2 * _peak_of(usual)
    width = usual.kept_bytes - output
    reached: list[tuple[int, int]] = []  # for limits between these two, the first is the answer
    for number, share in enumerate(_coarse_to_fine(num_kept)):
        if late():
            return
        kept = output + int(share * max(0, width - 1))
        if any(low <= kept <= high for low, high in reached):
            continue
        setting = _limited(graph, kept, peak_bytes)
        if effort.is_over():
            if number > 2:
                return
            for found in dtr_seeds(setting, peak_bytes, effort=effort):
                yield measured_option(graph, Schedule(graph.op_names, found.runs))
            continue
        with effort.part(1.0) as part:
            plan = cuts(setting, peak_bytes, effort=part)
        if plan.schedule is None:
            with effort.take(_LEAST) as part:
                plan = local_search(setting, peak_bytes, effort=part, num_threads=2)
        if plan.schedule is not None:
            option = measured_option(graph, plan.schedule)
            if plan.status == "optimal":
                reached.append((option.kept_bytes, kept))
            yield option


def _coarse_to_fine(count: int) -> list[float]:
    """Shares from 0 to 1, denser towards 0, each next one in the widest gap so far."""
    shares = [0.0, 1.0]
    depth = 1
    while len(shares) < count:
        shares += [k / 2**depth for k in range(1, 2**depth, 2)]
        depth += 1
    return [share**2 for share in shares[:count]]


def _num_forward(graph: Graph, block: GraphBlock) -> int:
    """Number of ops before the rest of the step, or before the loss in the last block."""
    rest = np.flatnonzero(block.ops < 0)
    if rest.size:
        return int(rest[0])
    return next(i for i, op in enumerate(graph.ops) if op.phase != "forward")


def _rest_reads(graph: Graph, num_forward: int) -> tuple[str, ...]:
    op = graph.ops[num_forward]
    return op.reads if op.name == REST else ()


def _peak_of(option: BlockOption) -> int:
    return max(option.forward_bytes, option.backward_bytes, option.kept_bytes)


def _tight_settings(graph: Graph, usual: BlockOption) -> Iterator[tuple[Graph, int]]:
    """Graphs of the block with a limit on what is kept, each paired with a limit on the peak."""
    most = _peak_of(usual)
    least = least_memory_bytes(graph)[0]
    peaks = [int(least + share * (most - least)) for share in _PEAK_SHARES]
    rest = next((op for op in graph.ops if op.name == REST), None)
    if rest is None:
        for peak_bytes in peaks:
            yield graph, peak_bytes
        return
    output = sum(_size(graph, tensor) for tensor in rest.reads)
    for share in _KEPT_SHARES:
        for peak_bytes in peaks[:2]:
            kept = output + int(share * (usual.kept_bytes - output))
            yield _limited(graph, kept, peak_bytes), peak_bytes


def _limited(graph: Graph, kept_bytes: int, peak_bytes: int) -> Graph:
    """The block's graph, in which at most `kept_bytes` fit beside the rest of the step."""
    at = next(i for i, op in enumerate(graph.ops) if op.name == REST)
    rest = graph.ops[at]
    workspace = max(0, peak_bytes - kept_bytes - sum(rest.writes.values()))
    ops = (*graph.ops[:at], replace(rest, workspace_bytes=workspace), *graph.ops[at + 1 :])
    return replace(graph, ops=ops)


def _size(graph: Graph, tensor: str) -> int:
    """Bytes of a tensor in the block's graph; tensors that come in have zero."""
    producer = graph.producer(tensor)
    return 0 if producer is None else graph.ops[producer].writes[tensor]


def measured_option(graph: Graph, schedule: Schedule) -> BlockOption:
    """`schedule` of a block's graph as an option, measured by replay."""
    simulation = simulate(graph, schedule)
    runs = schedule.bind(graph).astype(np.int64)
    memory = simulation.memory_bytes
    rest = [i for i, op in enumerate(graph.ops) if op.name == REST]
    if not rest:
        most = int(memory.max())
        split = int(np.argmax(runs == _first_late(graph)))
        return BlockOption(runs[:split], runs[split:], simulation.makespan_s, 0, most, most)
    at = int(np.argmax(runs == rest[0]))
    op = graph.ops[rest[0]]
    kept = int(memory[at]) - sum(op.writes.values()) - op.workspace_bytes
    return BlockOption(
        runs[:at],
        runs[at + 1 :],
        simulation.makespan_s,
        kept,
        max(kept, int(memory[:at].max(initial=0))),
        int(memory[at + 1 :].max(initial=0)),
    )


def _first_late(graph: Graph) -> int:
    return next(i for i, op in enumerate(graph.ops) if op.phase != "forward")


def pareto(options: list[BlockOption]) -> tuple[BlockOption, ...]:
    """The options that no other beats, the fastest first; at most `MOST_OPTIONS`, spread evenly."""
    best: list[BlockOption] = []
    ordered = sorted(
        options, key=lambda o: (o.time_s, o.kept_bytes, o.backward_bytes, o.forward_bytes)
    )
    for option in ordered:
        if not any(other.beats(option) for other in best):
            best.append(option)
    if len(best) > MOST_OPTIONS:
        chosen = np.linspace(0, len(best) - 1, MOST_OPTIONS).round().astype(int)
        best = [best[i] for i in chosen.tolist()]
    return tuple(best)
