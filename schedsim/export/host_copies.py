"""The cost of a schedule that holds some tensors in host memory between forward and backward.

Frameworks copy a tensor out after its last read in the forward, and back before its first read in
the backward. Some frameworks overlap the copies with computation, some do not. Copies are priced as
if nothing ran beside them, so a step is never slower than predicted for its link.
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
        The schedule with its copies.
    peak_bytes, makespan_s
        Peak of the device; time of the step, without any overlap of copies.
    host_bytes
        The most bytes held in host memory.
    tensors
        The tensors that are copied; a tensor that the backward never reads stays on the device.
    """

    schedule: Schedule
    peak_bytes: int
    makespan_s: float
    host_bytes: int
    tensors: tuple[str, ...]


def with_host_copies(
    workload: Chain | Graph, schedule: Schedule, tensors: Iterable[str], link: Offloading
) -> HostCopies:
    """`schedule` with each of `tensors` in host memory while no run touches it.

    A tensor stays on the device if the backward does not read it, if it is recomputed before it is
    read, or if it is read at once.

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
            continue  # no run in between: the copy would be useless
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
