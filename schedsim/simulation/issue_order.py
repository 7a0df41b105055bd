"""Which instance each run reads, and which run writes it: what the order of a schedule decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .course import IssueOrder

if TYPE_CHECKING:
    from ..dataflow.graph import Graph


def issue_order(graph: Graph, runs: NDArray[np.int32]) -> IssueOrder:
    """What the order of `runs`, which are legal, decides on `graph`; O(runs + reads + writes)."""
    from ._engine_kernel import bind_runs

    arrays = graph.arrays
    ints = np.int64
    made = np.empty(runs.size + 1, ints)
    input_start = np.zeros(runs.size + 1, ints)
    issued_start = np.zeros(runs.size + 1, ints)
    made[0] = len(graph.inputs)
    np.cumsum(arrays.num_writes[runs], out=made[1:])
    made[1:] += made[0]
    np.cumsum(np.diff(arrays.read_start)[runs], out=input_start[1:])
    np.cumsum(np.diff(arrays.follow_start)[runs], out=issued_start[1:])
    streams = arrays.op_stream[runs]
    order = IssueOrder(
        made=made,
        writer=np.full(made[-1], -1, ints),
        uses=np.zeros(made[-1], ints),
        input_start=input_start,
        input_instance=np.empty(input_start[-1], ints),
        issued_start=issued_start,
        issued_run=np.full(issued_start[-1], -1, ints),
        line_start=np.searchsorted(np.sort(streams), np.arange(len(arrays.stream_names) + 1)),
        line=np.argsort(streams, kind="stable"),
    )
    latest = np.full(arrays.tensor_bytes.size, -1, ints)
    bind_runs(arrays, runs, order, latest, np.full(len(arrays.stream_names), -1, ints))
    return order
