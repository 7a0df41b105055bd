"""Bytes of memory pools after each event, by category, for figures and traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .categories import CATEGORIES

if TYPE_CHECKING:
    from ..dataflow.arrays import GraphArrays
    from .course import Course

Instances = tuple[NDArray[Any], ...]
InstanceEvents = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def newest_instances(arrays: GraphArrays, tensor: NDArray[np.int32]) -> NDArray[np.int64]:
    """The last instance of each tensor, ``(num_tensors,)``; -1 for one that is never made."""
    newest = np.full(len(arrays.tensor_names), -1, dtype=np.int64)
    newest[tensor] = np.arange(tensor.size)  # with repeated indices, the last assignment wins
    return newest


def live_bytes(
    arrays: GraphArrays, instances: Instances, chosen: NDArray[np.bool_], num_runs: int
) -> NDArray[np.int64]:
    """Bytes of the chosen instances alive during each run of one stream, ``(num_runs,)``."""
    tensor, first, last, source, _ = instances
    sizes = arrays.tensor_bytes[tensor]
    change = np.zeros(num_runs + 1, dtype=np.int64)
    mine = np.flatnonzero(chosen & (last >= 0))
    np.add.at(change, first[mine], sizes[mine])
    np.subtract.at(change, last[mine] + 1, sizes[mine])
    # In place: if this run is the input's last use, input and output share the larger storage.
    mine = mine[(source[mine] >= 0) & (last[source[mine]] == first[mine])]
    shared = np.minimum(sizes[mine], sizes[source[mine]])
    np.subtract.at(change, first[mine], shared)
    np.add.at(change, first[mine] + 1, shared)
    return np.cumsum(change)[:-1]


def instance_events(
    arrays: GraphArrays,
    instances: Instances,
    event_of: NDArray[np.int64],
    num_runs: int,
    course: Course | None,
) -> InstanceEvents:
    """See `Simulation.instance_events`; `event_of` says where ``2 * run`` stands in the events."""
    tensor, first, last, source, _ = instances
    made = event_of[2 * first.astype(np.int64)]
    made[: int((arrays.tensor_producer < 0).sum())] = -1
    if course is not None:
        freed, shared = course.freed.copy(), course.shared
    else:
        sizes = arrays.tensor_bytes[tensor]
        freed = 2 * last.astype(np.int64) + 1
        freed[newest_instances(arrays, tensor)[arrays.tensor_result]] = 2 * num_runs
        taken = (source >= 0) & (last[source] == first)
        shared = np.where(taken, np.minimum(sizes, sizes[source]), 0)
    never = last < 0
    freed[never] = made[never]
    return made, freed, shared


def pool_timeline(
    arrays: GraphArrays,
    runs: NDArray[np.int32],
    instances: Instances,
    events: InstanceEvents,
    event_of: NDArray[np.int64],
    workspace: NDArray[np.int64],
    number: int,
) -> dict[str, NDArray[np.int64]]:
    """Bytes of pool `number` after each event by category; see `Simulation.pool_timeline`."""
    tensor, _, _, source, category = instances
    made, freed, shared = events
    here = (arrays.tensor_pool[tensor] == number) & (made < freed)
    sizes = arrays.tensor_bytes[tensor]
    rows: dict[str, NDArray[np.int64]] = {}
    for code, name in enumerate(CATEGORIES):
        # Entry 0 holds the bytes before the first event.
        change = np.zeros(2 * runs.size + 2, dtype=np.int64)
        mine = here & (category == code)
        np.add.at(change, made[mine] + 1, sizes[mine] - shared[mine])
        np.add.at(change, freed[mine] + 1, -sizes[mine])
        takes = np.flatnonzero(mine & (shared > 0))
        np.add.at(change, freed[source[takes]] + 1, shared[takes])
        if name == "static":
            change[0] += arrays.pool_static_bytes[number]
        if name in ("workspace", "gradients"):  # a negative one counts with the gradients
            working = arrays.op_pool[runs] == number
            sign = workspace >= 0 if name == "workspace" else workspace < 0
            working &= sign
            np.add.at(change, event_of[0::2][working] + 1, workspace[working])
            np.add.at(change, event_of[1::2][working] + 1, -workspace[working])
        rows[name] = np.cumsum(change)[1:-1]
    return rows
