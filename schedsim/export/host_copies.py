"""What a schedule costs that holds some tensors in host memory between forward and backward.

Frameworks copy a tensor out when the forward has read it for the last time, and back before the
backward reads it first. Some do so beside what computes, some do not: the copies are priced as if
nothing ran beside them, so that a step is never slower than is said for its link.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..dataflow.chain import Chain
from ..dataflow.copies import Copy
from ..dataflow.graph import Graph
from ..plans.offloading import Offloading
from ..simulation.schedule import Schedule
from ..simulation.simulator import simulate


@dataclass(frozen=True)
class HostCopies:
    """A schedule with copies, and what it costs.

    Attributes
    ----------
    schedule
        Copies included, each where it is made.
    peak_bytes, makespan_s
        Of the device; of the step, its copies one after the other.
    host_bytes
        Held in host memory at most.
    tensors
        Those that are copied: what the backward never reads stays where it is.
    """

    schedule: Schedule
    peak_bytes: int
    makespan_s: float
    host_bytes: int
    tensors: tuple[str, ...]


def with_host_copies(
    workload: Chain | Graph, schedule: Schedule, tensors: Iterable[str], link: Offloading
) -> HostCopies:
    """`schedule` with each of `tensors` in host memory while nothing of the schedule touches it.

    A tensor that the backward does not read, or that is recomputed before it is read, or that is
    read at once, is left on the device.

    Notes
    -----
    O(runs) for each tensor.
    """
    graph, simulation = workload.graph, simulate(workload, schedule)
    arrays, runs = graph.arrays, schedule.bind(workload)
    backward = np.flatnonzero(arrays.op_phase[runs] != 0)
    boundary = int(backward[0]) if backward.size else runs.size
    place = {name: i for i, name in enumerate(arrays.tensor_names)}
    reader_of = np.repeat(np.arange(graph.num_ops), np.diff(arrays.read_start))
    writer_of = np.repeat(np.arange(graph.num_ops), np.diff(arrays.write_start))
    memory = simulation.memory_bytes.astype(np.int64)
    copies: dict[int, list[str]] = {}
    makespan_s, held, copied = simulation.makespan_s, 0, []
    for name in dict.fromkeys(tensors):
        number = place[name]
        reads = np.isin(runs, reader_of[arrays.read_tensor == number])
        writes = np.isin(runs, writer_of[arrays.write_tensor == number])
        touched = np.flatnonzero(reads | writes)
        before, after = touched[touched < boundary], touched[touched >= boundary]
        if not (before.size and after.size) or writes[after[0]]:
            continue
        if after[0] - before[-1] < 2:
            continue  # nothing runs while it would be away
        size = int(arrays.tensor_bytes[number])
        out, back = int(before[-1]), int(after[0])
        memory[out + 1 : back] -= size
        copies.setdefault(out + 1, []).append(Copy(name).name)
        copies.setdefault(back, []).append(Copy(name, back=True).name)
        makespan_s += link.d2h.time_s(size) + link.h2d.time_s(size)
        held += size
        copied.append(name)
    names: list[str] = []
    for i, run in enumerate([*schedule.names, ""]):
        names += copies.get(i, [])
        names += [run] if run else []
    return HostCopies(
        Schedule.from_names(names), int(memory.max()), makespan_s, held, tuple(copied)
    )
