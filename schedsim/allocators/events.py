"""What a schedule asks of an allocator, in order: the storage of tensors, and workspaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ..simulator import Simulation

STATIC = "static"
WORKSPACE = "workspace"


@dataclass(frozen=True)
class Events:
    """Requests and releases of memory.

    Attributes
    ----------
    items : (num_events,) int64
        ``i`` asks for the bytes of item i, ``~i`` gives them back.
    runs : (num_events,) int64
        The run of the schedule that each belongs to, not decreasing; -1 before the first.
    item_bytes : (num_items,) int64
        As asked for, not rounded.
    item_stream : (num_items,) int64
        The stream on whose order the item is used; blocks go from one to another on no account.
    item_names : tuple of str
        Of the tensor, ``static``, or ``workspace`` and its op.
    num_runs, num_streams : int
    """

    items: NDArray[np.int64]
    runs: NDArray[np.int64]
    item_bytes: NDArray[np.int64]
    item_stream: NDArray[np.int64]
    item_names: tuple[str, ...]
    num_runs: int
    num_streams: int = 1

    def repeated(self, num_steps: int) -> Events:
        """The same step again and again; what is there before the first run is asked for once."""
        before = int(np.searchsorted(self.runs, 0))
        items, runs = self.items[before:], self.runs[before:]
        shift = np.repeat(np.arange(num_steps, dtype=np.int64) * self.num_runs, runs.size)
        return Events(
            np.concatenate([self.items[:before], np.tile(items, num_steps)]),
            np.concatenate([self.runs[:before], np.tile(runs, num_steps) + shift]),
            self.item_bytes,
            self.item_stream,
            self.item_names,
            self.num_runs * num_steps,
            self.num_streams,
        )


def events_of(simulation: Simulation) -> Events:
    """The requests of a simulated schedule.

    Static bytes are one request before the first run. A run asks for its outputs, then for its
    workspace; it gives back the workspace, then what nobody reads any more. Outputs in place take
    the storage of their input, which is as large as the largest tensor it ever holds.

    Notes
    -----
    O(n log n) for n tensor instances and runs.
    """
    graph, runs = simulation._graph, simulation._runs
    tensor, first, last, source, _ = simulation._instances
    arrays = graph.arrays
    owner, size, end = _storages(tensor, first, last, source, arrays.tensor_bytes)
    storages = np.flatnonzero((last >= 0) & (owner == np.arange(owner.size)) & (size > 0))
    workspaces = np.flatnonzero(simulation._workspace > 0)
    num_storages, num_workspaces = storages.size, workspaces.size
    num = num_storages + num_workspaces
    items = np.arange(num, dtype=np.int64)
    begins = np.concatenate([first[storages], workspaces]).astype(np.int64)
    ends = np.concatenate([end[storages], workspaces]).astype(np.int64)
    # Outputs stand before the workspace when asked for, and behind it when given back.
    is_workspace = np.arange(num) >= num_storages
    order = np.lexsort(
        (
            np.concatenate([items, items]),
            np.concatenate([is_workspace, ~is_workspace]),
            np.concatenate([2 * begins, 2 * ends + 1]),
        )
    )
    all_items = np.concatenate([items, ~items])[order]
    all_runs = np.concatenate([begins, ends])[order]
    item_bytes = np.concatenate([size[storages], simulation._workspace[workspaces]])
    names = [arrays.tensor_names[t] for t in tensor[storages]]
    names += [f"{WORKSPACE} of {graph.op_names[op]}" for op in runs[workspaces]]
    if simulation.static_bytes:
        all_items = np.concatenate([[num], all_items])
        all_runs = np.concatenate([[-1], all_runs])
        item_bytes = np.append(item_bytes, simulation.static_bytes)
        names.append(STATIC)
    return Events(
        items=all_items.astype(np.int64),
        runs=all_runs.astype(np.int64),
        item_bytes=item_bytes.astype(np.int64),
        item_stream=np.zeros(len(names), dtype=np.int64),
        item_names=tuple(names),
        num_runs=simulation.num_runs,
    )


def _storages(
    tensor: NDArray[np.int32],
    first: NDArray[np.int32],
    last: NDArray[np.int32],
    source: NDArray[np.int32],
    tensor_bytes: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Of each instance: the one whose storage it has, and that storage's size and last run."""
    owner = np.arange(tensor.size, dtype=np.int64)
    size = tensor_bytes[tensor].astype(np.int64)
    end = last.astype(np.int64)
    # Sources stand before what takes them over, so that owners are known in this order.
    for i in np.flatnonzero((source >= 0) & (last >= 0)).tolist():
        if last[source[i]] == first[i]:
            root = owner[source[i]]
            owner[i] = root
            size[root] = max(size[root], size[i])
            end[root] = end[i]
    return owner, size, end
