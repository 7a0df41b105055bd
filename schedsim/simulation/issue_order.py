"""The order of a schedule decides which instance each run reads, and which run writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .course import IssueOrder

if TYPE_CHECKING:
    from ..dataflow.graph import Graph


def issue_order(graph: Graph, runs: NDArray[np.int32]) -> IssueOrder:
    """The `IssueOrder` of legal `runs` on `graph`; O(runs + reads + writes)."""
    from ._engine_kernel import bind_runs

    arrays = graph.arrays
    ints, num_streams = np.int64, len(arrays.stream_names)
    num_made = len(graph.inputs) + int(arrays.num_writes[runs].sum())
    num_issued = _total(arrays.follow_start, runs) if arrays.follow_start[-1] else 0
    order = IssueOrder(
        made=np.empty(runs.size + 1, ints),
        writer=np.full(num_made, -1, ints),
        uses=np.zeros(num_made, ints),
        input_start=np.empty(runs.size + 1, ints),
        input_instance=np.empty(_total(arrays.read_start, runs), ints),
        issued_start=np.empty(runs.size + 1, ints),
        issued_run=np.empty(num_issued, ints),
        line_start=np.zeros(num_streams + 1, ints),
        line=np.empty(runs.size, ints),
    )
    latest = np.full(arrays.tensor_bytes.size, -1, ints)
    bind_runs(arrays, runs, order, latest, np.full(num_streams, -1, ints))
    return order


def _total(start: NDArray[np.int64], runs: NDArray[np.int32]) -> int:
    """Number of entries that `runs` have in a table whose rows, one per op, begin at `start`."""
    return int(np.diff(start)[runs].sum())
