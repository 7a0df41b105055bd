"""Options of a block: ways to run it around the rest of the step, from the planners of graphs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from schedsim.graph import Graph, Op
from schedsim.schedule import Schedule
from schedsim.simulator import simulate

from ._blocks import REST, Block, BlockLine
from ._seeds import dtr_seeds
from .bounds import least_memory_bytes
from .local_search import local_search

MOST_OPTIONS = 32

_SHARES = (0.0, 0.01, 0.02, 0.04, 0.07, 0.11, 0.16, 0.25, 0.4, 0.7)
"""Of the bytes that store-all keeps of a block beyond its output, what an option may keep."""

_LEAST_S = 0.02
_MOST_S = 0.4


@dataclass(frozen=True)
class BlockOption:
    """One way to run a block, its input and whatever lies outside not counted.

    Attributes
    ----------
    forward, backward : (num_runs,) int64
        Ops in the block's own numbering, repeats included, before and after the later blocks.
    time_s : float
        Of both.
    kept_bytes : int
        Alive while the later blocks run, the block's output included.
    forward_bytes, backward_bytes : int
        The most alive before and after; the second with the gradients that came in.
    """

    forward: NDArray[np.int64]
    backward: NDArray[np.int64]
    time_s: float
    kept_bytes: int
    forward_bytes: int
    backward_bytes: int

    def beats(self, other: BlockOption) -> bool:
        """Whether it is at least as good in every respect."""
        return (
            self.time_s <= other.time_s
            and self.kept_bytes <= other.kept_bytes
            and self.forward_bytes <= other.forward_bytes
            and self.backward_bytes <= other.backward_bytes
        )


@dataclass(frozen=True)
class BlockClass:
    """Blocks of one kind: their options, and their forward where nothing but the output is kept.

    Attributes
    ----------
    options
        None beats another; the fastest first.
    plain_s, plain_bytes
        Time and peak of that forward, the output included.
    """

    options: tuple[BlockOption, ...]
    plain_s: float
    plain_bytes: int


def block_classes(line: BlockLine, *, time_limit_s: float, seed: int) -> dict[int, BlockClass]:
    """The class of each kind of block, in about `time_limit_s`; each kind is solved once."""
    counts = np.bincount(line.kinds)
    num_settings = {kind: _num_settings(int(counts[kind])) for kind in line.first_of_kind}
    total = sum(num_settings.values())
    deadline = time.perf_counter() + time_limit_s
    found = {}
    for kind, index in line.first_of_kind.items():
        left = max(0.0, deadline - time.perf_counter())
        each_s = left / max(1, total)
        total -= num_settings[kind]
        found[kind] = _class_of(line, index, num_settings[kind], each_s, seed)
    return found


def _num_settings(count: int) -> int:
    return 12 if count > 1 else 5


def _class_of(
    line: BlockLine, index: int, num_settings: int, each_s: float, seed: int
) -> BlockClass:
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
    starts: tuple[Schedule, ...] = ()
    for setting, peak_bytes in _settings(graph, usual, num_settings):
        tried = [Schedule(setting.op_names, seed_.runs) for seed_ in dtr_seeds(setting, peak_bytes)]
        if each_s >= _LEAST_S:
            plan = local_search(
                setting,
                peak_bytes,
                time_limit_s=min(each_s, _MOST_S),
                seed=seed,
                num_threads=2,
                starts=(*starts, *tried[:1]),
            )
            if plan.schedule is not None:
                tried.append(plan.schedule)
                starts = (plan.schedule,)
        options += [measured_option(graph, schedule) for schedule in tried]
    return BlockClass(pareto(options), plain.makespan_s, plain.peak_bytes)


def _num_forward(graph: Graph, block: Block) -> int:
    """Ops before the rest of the step, or before the loss in the last block."""
    rest = np.flatnonzero(block.ops < 0)
    if rest.size:
        return int(rest[0])
    return next(i for i, op in enumerate(graph.ops) if op.phase != "forward")


def _rest_reads(graph: Graph, num_forward: int) -> tuple[str, ...]:
    op = graph.ops[num_forward]
    return op.reads if op.name == REST else ()


def _settings(graph: Graph, usual: BlockOption, num_settings: int) -> Iterator[tuple[Graph, int]]:
    """Graphs of the block with a limit on what is kept, each with a limit on the peak."""
    most = max(usual.forward_bytes, usual.backward_bytes, usual.kept_bytes)
    least = least_memory_bytes(graph)[0]
    peaks = [int(least + share * (most - least)) for share in (0.0, 0.1, 0.4, 0.7)]
    at = next((i for i, op in enumerate(graph.ops) if op.name == REST), None)
    if at is None:
        for peak_bytes in peaks:
            yield graph, peak_bytes
        return
    rest = graph.ops[at]
    incoming = sum(rest.writes.values())
    output = sum(_size(graph, t) for t in rest.reads)
    shares = _SHARES if num_settings > 5 else _SHARES[::4]
    pairs = [(output + int(share * (usual.kept_bytes - output)), 2 * most) for share in shares]
    few = (_SHARES[0], _SHARES[4]) if num_settings > 5 else _SHARES[:1]
    for share in few:
        kept = output + int(share * (usual.kept_bytes - output))
        pairs += [(kept, peak) for peak in peaks[:2]]
    for kept, peak_bytes in pairs:
        workspace = max(0, peak_bytes - kept - incoming)
        limited = replace(rest, workspace_bytes=workspace)
        ops = (*graph.ops[:at], limited, *graph.ops[at + 1 :])
        yield replace(graph, ops=ops), peak_bytes


def _size(graph: Graph, tensor: str) -> int:
    """Bytes of a tensor in the block's graph: what comes in has none."""
    producer = graph.producer(tensor)
    return 0 if producer is None else graph.ops[producer].writes[tensor]


def measured_option(graph: Graph, schedule: Schedule) -> BlockOption:
    """`schedule` of a block's graph as an option, by replay."""
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
    """Those that no other beats, the fastest first; at most `MOST_OPTIONS`, spread evenly."""
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
