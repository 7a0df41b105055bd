"""Computation beside messages, whose kernels hold processors of the device.

A kernel of NCCL holds processors until its message is sent, and shares them with nobody (github
NVIDIA/nccl, issue 689: "NCCL CTAs won't share an SM with compute kernels"). What computes meanwhile
has the others.

- Most kernels consist of many short blocks, and take as much longer as there are fewer processors.
- A matrix product of Hopper's libraries is one block for each processor of the device, which works
  for as long as the whole product does. Beside a message, some of these blocks find no processor
  and run behind the others, so that a product takes "2x as long" (github pytorch/pytorch, issue
  143988; pull request 144974). They begin as soon as the message is sent, so that no more is lost
  than what of the message is beside the product. A message that comes while such a product runs
  waits for it.

Messages of several groups that go over the same links at once share their rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..dataflow.graph import COMPUTE, Graph
from ..simulation.issue_order import issue_order
from ..simulation.result import Simulation
from ..simulation.schedule import Schedule
from ..simulation.simulator import simulate
from .rank_units import REPLICA_STREAM, SHARD_STREAM

if TYPE_CHECKING:
    from .rank_step import RankStep

_MESSAGES = "link:"


def played_beside(step: RankStep) -> Simulation:
    """A written `step`, in which computation and messages take from each other.

    The seconds of a message count from when it could begin.

    Notes
    -----
    O(runs + reads) for a few streams.
    """
    graph, schedule = step.graph, step.schedule
    seconds = None if graph.one_stream else _Play(step, graph, schedule).seconds()
    return simulate(graph, schedule, run_s=seconds)


@dataclass(slots=True)
class _Going:
    """A run that is going on.

    `left_s` is what it has yet to do at full speed. A product of which all blocks but those that
    found no processor end at `held_until` leaves none before.
    """

    run: int
    ready_s: float
    left_s: float
    held_until: float = -inf


class _Play:
    """The streams of a rank's step, played event by event."""

    def __init__(self, step: RankStep, graph: Graph, schedule: Schedule) -> None:
        arrays, runs = graph.arrays, schedule.bind(graph).copy()
        order = issue_order(graph, runs)
        self.taken_s = arrays.op_time_s[runs].tolist()
        writer, reads = order.writer.tolist(), order.input_instance.tolist()
        begins, issued = order.input_start.tolist(), order.issued_start.tolist()
        first = order.issued_run.tolist()
        num_runs = len(self.taken_s)
        self.waits_for = [
            [writer[i] for i in reads[begins[k] : begins[k + 1]] if writer[i] >= 0]
            for k in range(num_runs)
        ]
        self.issued_after = [
            [other for other in first[issued[k] : issued[k + 1]] if other >= 0]
            for k in range(num_runs)
        ]
        names = arrays.stream_names
        starts = order.line_start.tolist()
        self.lines = [order.line[starts[q] : starts[q + 1]].tolist() for q in range(len(names))]
        self.compute = names.index(COMPUTE)
        spans = {q: _span(step, name) for q, name in enumerate(names) if name.startswith(_MESSAGES)}
        self.sending = {q: step.fabric.sending(span) for q, span in spans.items()}
        self.inside = {q: span <= step.fabric.per_node for q, span in spans.items()}
        self.in_waves = step.products() if step.fabric.persistent else [False] * num_runs
        self.head = [0] * len(names)
        self.ready_s: list[float | None] = [None] * len(names)
        self.going: dict[int, _Going] = {}
        self.begun, self.ended = [False] * num_runs, [False] * num_runs
        self.now = 0.0

    def seconds(self) -> NDArray[np.float64]:
        """Play all runs."""
        found = np.zeros(len(self.taken_s))
        while True:
            while any(self._start(q, found) for q in range(len(self.lines))):
                pass
            if not self.going:
                assert all(self.ended), "a legal order gets stuck nowhere"
                return found
            self._go_on(found)

    def _start(self, q: int, found: NDArray[np.float64]) -> bool:
        """Start the next run of stream `q` if it can; whether one has started."""
        if q in self.going or self.head[q] == len(self.lines[q]):
            return False
        k = self.lines[q][self.head[q]]
        if not all(self.ended[other] for other in self.waits_for[k]):
            return False
        if not all(self.begun[other] for other in self.issued_after[k]):
            return False
        ready_s = self.ready_s[q]
        ready_s = self.ready_s[q] = self.now if ready_s is None else ready_s
        left_s = self.taken_s[k]
        beside = self.going.get(self.compute)
        if q in self.sending and left_s and beside and beside.held_until > self.now:
            return False
        self.ready_s[q], self.begun[k] = None, True
        one = _Going(k, ready_s, left_s)
        if q == self.compute and self.in_waves[k]:
            one.held_until = self.now + left_s
            sent_s = max((self.going[m].left_s for m in self.sending if m in self.going), default=0)
            one.left_s += min(left_s, sent_s)
        if left_s:
            self.going[q] = one
        else:
            self._end(q, one, found)
        return True

    def _end(self, q: int, one: _Going, found: NDArray[np.float64]) -> None:
        self.ended[one.run] = True
        self.head[q] += 1
        found[one.run] = self.now - one.ready_s

    def _go_on(self, found: NDArray[np.float64]) -> None:
        """Until the next run ends, or a product leaves processors to messages that wait."""
        sent = sum([share for m, share in self.sending.items() if m in self.going])
        beside = self.going.get(self.compute)
        slowed = sent if beside and not self.in_waves[beside.run] else 0.0
        links = [self.inside[q] for q in self.going if q in self.inside]
        rates = {
            q: 1.0 / links.count(self.inside[q]) if q in self.inside else 1.0 for q in self.going
        }
        if beside:
            rates[self.compute] = 1.0 - slowed
        ends = {q: one.left_s / rates[q] for q, one in self.going.items()}
        passed_s = min(ends.values())
        if beside and beside.held_until > self.now:
            passed_s = min(passed_s, beside.held_until - self.now)
        self.now += passed_s
        if beside and beside.held_until <= self.now * (1 + 1e-15):
            beside.held_until = -inf
        for q, end_s in ends.items():
            one = self.going[q]
            if end_s <= passed_s:
                del self.going[q]
                self._end(q, one, found)
            else:
                one.left_s -= passed_s * rates[q]


def _span(step: RankStep, stream: str) -> int:
    """Devices from the first to the last of those that exchange messages on a stream."""
    degrees = step.degrees
    return {
        SHARD_STREAM: degrees.shards * degrees.tensor,
        REPLICA_STREAM: degrees.num_devices,
        "link:tensor": degrees.tensor,
        "link:context": degrees.context * degrees.tensor,
    }.get(stream, degrees.expert * degrees.tensor)
