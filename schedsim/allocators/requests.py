"""The requests that a schedule makes of an allocator: storage of tensors, and workspaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..dataflow.streams import DEVICE
from ..errors import SchedsimError

if TYPE_CHECKING:
    from ..simulation.result import Simulation

# Order of requests within one event of the simulation.
_FREE_RESULT, _ASK_INPUT, _FREE_WORKSPACE, _FREE_TENSOR, _ASK_TENSOR, _ASK_WORKSPACE = range(6)


@dataclass(frozen=True)
class Requests:
    """Requests and releases of memory.

    Attributes
    ----------
    items : (num_requests,) int64
        ``i`` requests the bytes of item i, ``~i`` releases them.
    events : (num_requests,) int64
        The event of the simulation that causes each request, ascending; -1 before the first event.
    item_bytes : (num_items,) int64
        Requested bytes, not rounded.
    item_stream : (num_items,) int64
        The stream that uses the item; a block never moves from one stream to another.
    item_names : tuple of str
        Name of the tensor, ``static bytes``, or ``workspace of`` an op.
    num_events, num_streams : int
        Number of events of the simulation, and of streams.
    rounding_bytes : int
        How much larger than requested the first items are: blocks that were seen on a device, and
        are resident throughout.
    empty_before
        The number of the request before which everything cached goes back to the device: those
        earlier lay out what is resident. 0 where nothing does.
    """

    items: NDArray[np.int64]
    events: NDArray[np.int64]
    item_bytes: NDArray[np.int64]
    item_stream: NDArray[np.int64]
    item_names: tuple[str, ...]
    num_events: int
    num_streams: int = 1
    rounding_bytes: int = 0
    empty_before: int = 0

    def repeated(self, num_steps: int) -> Requests:
        """The same step `num_steps` times; static bytes are requested once."""
        before = int(np.searchsorted(self.events, 0))
        items, events = self.items[before:], self.events[before:]
        shift = np.repeat(np.arange(num_steps, dtype=np.int64) * self.num_events, events.size)
        return Requests(
            np.concatenate([self.items[:before], np.tile(items, num_steps)]),
            np.concatenate([self.events[:before], np.tile(events, num_steps) + shift]),
            self.item_bytes,
            self.item_stream,
            self.item_names,
            self.num_events * num_steps,
            self.num_streams,
            self.rounding_bytes,
        )


def requests_of(simulation: Simulation, pool: str = DEVICE) -> Requests:
    """The requests that a simulated schedule makes of the memory of `pool`.

    Static bytes are one request before the first run. A run requests its outputs, then its
    workspace, on the stream that the run is issued to. At its end the run releases its workspace,
    then every tensor without a later reader. An in-place output takes the storage of its input;
    that storage is requested as large as the largest tensor that it ever holds.

    Notes
    -----
    O(n log n) for n tensor instances and runs.
    """
    if pool not in simulation.pool_names:
        raise SchedsimError(
            f"no memory pool {pool!r} in this simulation",
            hint=f"one of {', '.join(simulation.pool_names)}",
        )
    arrays, number = simulation._graph.arrays, simulation.pool_names.index(pool)
    tensor, first, _, _, _ = simulation._instances
    owner, size, made, freed = _storages(simulation)
    mine = (arrays.tensor_pool[tensor] == number) & (made < freed) & (size > 0)
    storages = np.flatnonzero(mine & (owner == np.arange(owner.size)))
    runs = simulation._runs
    works = np.flatnonzero((arrays.op_pool[runs] == number) & (simulation._workspace > 0))
    asks = np.concatenate([np.maximum(made[storages], 0), simulation._event_of[2 * works]])
    ends = np.concatenate([freed[storages], simulation._event_of[2 * works + 1]])
    work = np.arange(asks.size) >= storages.size
    given = np.concatenate([made[storages] < 0, np.zeros(works.size, dtype=bool)])
    asks_kind = np.where(work, _ASK_WORKSPACE, np.where(given, _ASK_INPUT, _ASK_TENSOR))
    last = ends >= 2 * simulation.num_runs
    ends_kind = np.where(work, _FREE_WORKSPACE, np.where(last, _FREE_RESULT, _FREE_TENSOR))
    items = np.arange(asks.size, dtype=np.int64)
    items, events, kinds = (
        np.concatenate(pair) for pair in ((items, ~items), (asks, ends), (asks_kind, ends_kind))
    )
    order = np.lexsort((np.where(items < 0, ~items, items), kinds, events))
    items, events = items[order], events[order]
    item_bytes = np.concatenate([size[storages], simulation._workspace[works]])
    run_stream = arrays.op_stream[runs]
    streams = np.concatenate([run_stream[first[storages]], run_stream[works]])
    names = [arrays.tensor_names[t] for t in tensor[storages]]
    names += [f"workspace of {simulation._graph.op_names[op]}" for op in runs[works]]
    static = int(arrays.pool_static_bytes[number])
    if static:
        items = np.concatenate([[len(names)], items])
        events = np.concatenate([[-1], events])
        item_bytes = np.append(item_bytes, static)
        streams = np.append(streams, 0)
        names.append("static bytes")
    return Requests(
        items=items.astype(np.int64),
        events=events.astype(np.int64),
        item_bytes=item_bytes.astype(np.int64),
        item_stream=streams.astype(np.int64),
        item_names=tuple(names),
        num_events=2 * simulation.num_runs,
        num_streams=len(simulation.stream_names),
    )


def _storages(simulation: Simulation) -> tuple[NDArray[np.int64], ...]:
    """The storage of each instance of a tensor, and how long the storage lives.

    Returns four arrays over instances: the instance that owns the storage, and for an owner the
    bytes of the storage, the event that makes it and the event that frees it. An instance owns its
    storage unless it takes over the storage of its input.
    """
    tensor, _, _, source, _ = simulation._instances
    made, freed, shared = (np.array(column) for column in simulation.instance_events)
    owner = np.arange(tensor.size, dtype=np.int64)
    size = simulation._graph.arrays.tensor_bytes[tensor]
    # An input comes before the instance that takes over its storage, so owners are known in this
    # order.
    for i in np.flatnonzero((shared > 0) & (made < freed)).tolist():
        root = owner[source[i]]
        owner[i] = root
        size[root] = max(size[root], size[i])
        freed[root] = freed[i]
    return owner, size, made, freed
