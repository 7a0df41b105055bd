"""Traces for Perfetto and Chrome: runs over time, bytes of memory, and flows from writer to reader.

The format is the JSON object of Google's "Trace Event Format": complete events (``X``) on a track
for each stream, counters (``C``) for the bytes of each memory pool by category, and flows (``s`` to
``f``) from the run that makes a tensor to each run that reads it. Open a trace in ui.perfetto.dev.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..files.atomic import write_atomically
from .categories import RUN_KINDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .result import Simulation

# Process ids in the trace: streams are threads of the first, memory pools counters of the second.
_STREAMS, _MEMORY = 1, 2


def trace_document(simulation: Simulation, title: str = "") -> dict[str, Any]:
    """The trace of `simulation`, as the JSON object of the Trace Event Format.

    Times are microseconds, rounded to whole nanoseconds, so that runs of a stream touch but never
    overlap. `title` is the name of the process that has the streams; by default the workload's.

    Notes
    -----
    O((runs + reads) log) time and memory.

    Examples
    --------
    >>> import schedsim
    >>> graph = schedsim.Graph("g", (schedsim.Op("f", time_s=1, writes={"x": 8}),))
    >>> run = schedsim.simulate(graph, schedsim.Schedule.store_all(graph))
    >>> [event["ph"] for event in trace_document(run)["traceEvents"]][-3:]
    ['X', 'C', 'C']
    """
    flows = _flows(simulation)
    events: list[dict[str, Any]] = []
    for run, event in enumerate(_slices(simulation)):
        # A flow binds to the slice that began last on its track, which another run may do at the
        # same time, where runs take none.
        events += [event, *flows[run]]
    events = sorted([*events, *_counters(simulation)], key=lambda event: event["ts"])
    return {
        "traceEvents": [*_names(simulation, title), *events],
        "displayTimeUnit": "ms",
        "otherData": {
            "workload": simulation.workload_name,
            "makespan_s": simulation.makespan_s,
            "store_all_s": simulation.store_all_s,
            "peak_bytes": dict(simulation.peak_by_pool),
        },
    }


def write_trace(simulation: Simulation, path: str | os.PathLike[str], title: str = "") -> None:
    """Write the trace to `path`, atomically; compressed where the name ends in ``.gz``."""
    data = json.dumps(trace_document(simulation, title), separators=(",", ":")).encode()
    if os.fspath(path).endswith(".gz"):
        # no time stamp: equal runs give equal files
        data = gzip.compress(data, compresslevel=6, mtime=0)
    write_atomically(path, data)


def is_trace_name(path: str) -> bool:
    """Whether `path` names a trace: ``*.json.gz`` or ``*trace.json``."""
    return path.endswith((".json.gz", "trace.json"))


def _microseconds(times: NDArray[np.float64]) -> list[float]:
    return [float(time) for time in np.rint(times * 1e9) / 1e3]


def _names(simulation: Simulation, title: str) -> Iterator[dict[str, Any]]:
    """Names and order of processes and tracks."""
    streams = title or simulation.workload_name
    for pid, name in ((_STREAMS, streams), (_MEMORY, "memory [bytes]")):
        yield _about("process_name", pid, 0, name=name)
        yield _about("process_sort_index", pid, 0, sort_index=pid)
    for number, stream in enumerate(simulation.stream_names):
        yield _about("thread_name", _STREAMS, number + 1, name=stream)
        yield _about("thread_sort_index", _STREAMS, number + 1, sort_index=number)


def _about(what: str, pid: int, tid: int, **arguments: Any) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "ts": 0, "args": arguments}


def _slices(simulation: Simulation) -> Iterator[dict[str, Any]]:
    starts, ends = _microseconds(simulation.start_s), _microseconds(simulation.end_s)
    kinds, tracks = simulation.run_kinds.tolist(), simulation.run_streams.tolist()
    waits = simulation.wait_causes
    memory = simulation.memory_bytes.tolist()
    for k, name in enumerate(simulation.run_names):
        yield {
            "name": name,
            "cat": RUN_KINDS[kinds[k]],
            "ph": "X",
            "ts": starts[k],
            "dur": round(ends[k] - starts[k], 3),
            "pid": _STREAMS,
            "tid": tracks[k] + 1,
            "args": {"run": k, "waited for": waits[k], "memory_bytes": memory[k]},
        }


def _counters(simulation: Simulation) -> Iterator[dict[str, Any]]:
    """Bytes of each pool by category: at each instant the largest value, then the last."""
    times = np.array(_microseconds(simulation.event_s))
    if not times.size:
        return
    first = np.flatnonzero(np.diff(times, prepend=-1.0))
    last = np.append(first[1:], times.size) - 1
    for pool in simulation.pool_names:
        rows = {name: row for name, row in simulation.pool_timeline(pool).items() if row.any()}
        if not rows:
            continue
        total = np.sum(list(rows.values()), axis=0)
        columns = {name: row.tolist() for name, row in rows.items()}
        before = -1
        for begin, end in zip(first.tolist(), last.tolist(), strict=True):
            most = begin + int(np.argmax(total[begin : end + 1]))
            for at in (most, end) if most < end and total[most] != total[end] else (end,):
                if before >= 0 and all(row[at] == row[before] for row in columns.values()):
                    continue
                yield {
                    "name": pool,
                    "ph": "C",
                    "ts": times[at].item(),
                    "pid": _MEMORY,
                    "tid": 0,
                    "args": {name: row[at] for name, row in columns.items()},
                }
                before = at


def _flows(simulation: Simulation) -> list[list[dict[str, Any]]]:
    """The ends of flows at each run; a flow leads from a run that makes an instance to a reader."""
    found: list[list[dict[str, Any]]] = [[] for _ in range(simulation.num_runs)]
    order = simulation.issue_order
    starts = _microseconds(simulation.start_s)
    tracks = simulation.run_streams.tolist()
    readers = np.repeat(np.arange(simulation.num_runs), np.diff(order.input_start)).tolist()
    number = 0
    for reader, instance in zip(readers, order.input_instance.tolist(), strict=True):
        writer = int(order.writer[instance])
        if writer < 0:
            continue
        number += 1
        for phase, run in (("s", writer), ("f", reader)):
            event = {
                "name": simulation.instance_name(instance),
                "cat": "tensor",
                "ph": phase,
                "id": number,
                "ts": starts[run],
                "pid": _STREAMS,
                "tid": tracks[run] + 1,
            }
            if phase == "f":
                event["bp"] = "e"  # binds to the enclosing slice, not to the next one
            found[run].append(event)
    return found
