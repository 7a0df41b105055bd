"""A graph as flat arrays: what the simulator and the planners' kernels read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.record import Codes, Flags, Ints, Reals, Record
from .streams import DEVICE, compute_stream_of, device_of, is_compute

if TYPE_CHECKING:
    from .graph import Graph


@dataclass(frozen=True, eq=False)
class GraphArrays(Record):
    """Ops and tensors by index; lists of lists in compressed form (``start`` has one more entry).

    Tensors are ordered: graph inputs first, then outputs in op order. A copy that writes a tensor
    again does not change the tensor's own entries.

    Attributes
    ----------
    op_time_s : (num_ops,) float64
    op_workspace_bytes, op_saving_workspace_bytes : (num_ops,) int64
        Workspace of a run that materialises no optional output, and of a run that materialises one.
    op_phase : (num_ops,) int8
        Index into `schedsim.dataflow.op.PHASES`.
    op_once : (num_ops,) bool
    read_start, read_tensor : (num_ops + 1,), (num_reads,) int64
    write_start, write_tensor : (num_ops + 1,), (num_writes,) int64
    tensor_bytes : (num_tensors,) int64
    tensor_producer : (num_tensors,) int64
        The op that writes the tensor; -1 for a graph input.
    tensor_optional, tensor_result : (num_tensors,) bool
    tensor_takes_over : (num_tensors,) int64
        The input tensor whose storage the tensor takes over; -1 for none.
    tensor_names : tuple of str
    write_optional : (num_writes,) bool
    write_takes_over : (num_writes,) int64
        The same as for tensors, but for each write: a copy's write is neither optional nor in
        place.
    op_required, op_copy : (num_ops,) bool
        Whether a schedule must run the op; whether it is a copy.
    op_stream : (num_ops,) int64
        Index into `stream_names`, which are in the order in which ops first use them.
    op_pool, tensor_pool : (num_ops,), (num_tensors,) int64
        Index into `pool_names`: the pool of the op's workspace, and of the tensor; ``device`` is 0.
    op_home : (num_ops,) int64
        The pool of the device that the op works for. A copy or a message works for the device that
        it writes to, or else for the device that it reads from.
    pool_static_bytes : (num_pools,) int64
    follow_start, follow_stream : (num_ops + 1,), (num_follows,) int64
        The compute streams of the devices whose memory a copy touches.
    stream_names, pool_names : tuple of str
    """

    op_time_s: Reals
    op_workspace_bytes: Ints
    op_saving_workspace_bytes: Ints
    op_phase: Codes
    op_once: Flags
    read_start: Ints
    read_tensor: Ints
    write_start: Ints
    write_tensor: Ints
    tensor_bytes: Ints
    tensor_producer: Ints
    tensor_optional: Flags
    tensor_result: Flags
    tensor_takes_over: Ints
    tensor_names: tuple[str, ...]
    write_optional: Flags
    write_takes_over: Ints
    op_required: Flags
    op_copy: Flags
    op_stream: Ints
    op_pool: Ints
    op_home: Ints
    tensor_pool: Ints
    pool_static_bytes: Ints
    follow_start: Ints
    follow_stream: Ints
    stream_names: tuple[str, ...]
    pool_names: tuple[str, ...]

    @cached_property
    def num_writes(self) -> NDArray[np.int64]:
        """How many tensors each op writes, ``(num_ops,)``."""
        return np.diff(self.write_start)

    @cached_property
    def saving_differs(self) -> bool:
        """Whether an op has another workspace where it materialises an optional output."""
        return not np.array_equal(self.op_saving_workspace_bytes, self.op_workspace_bytes)


def _compressed(lists: list[list[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    start = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum([len(one) for one in lists], out=start[1:])
    flat = np.fromiter((item for one in lists for item in one), dtype=np.int64, count=start[-1])
    return start, flat


def build_arrays(graph: Graph) -> GraphArrays:
    """`graph` as arrays; O(ops + tensors + reads)."""
    from .op import PHASES

    index: dict[str, int] = {name: i for i, name in enumerate(graph.inputs)}
    sizes = list(graph.inputs.values())
    producer = [-1] * len(sizes)
    for i, op in enumerate(graph.ops):
        for tensor, size in op.writes.items():
            if tensor not in index:
                index[tensor] = len(sizes)
                sizes.append(size)
                producer.append(i)
    optional = np.zeros(len(sizes), dtype=np.bool_)
    takes_over = np.full(len(sizes), -1, dtype=np.int64)
    write_optional: list[bool] = []
    write_takes_over: list[int] = []
    for i, op in enumerate(graph.ops):
        if not (op.optional or op.in_place):
            write_optional += [False] * len(op.writes)
            write_takes_over += [-1] * len(op.writes)
            continue
        sources = {output: index[source] for output, source in op.in_place.items()}
        for tensor in op.writes:
            write_optional.append(tensor in op.optional)
            write_takes_over.append(sources.get(tensor, -1))
            if producer[index[tensor]] == i:
                optional[index[tensor]] = write_optional[-1]
                takes_over[index[tensor]] = write_takes_over[-1]
    result = np.zeros(len(sizes), dtype=np.bool_)
    result[[index[tensor] for tensor in graph.results]] = True
    read_start, read_tensor = _compressed([[index[t] for t in op.reads] for op in graph.ops])
    write_start, write_tensor = _compressed([[index[t] for t in op.writes] for op in graph.ops])

    streams = tuple(dict.fromkeys(op.stream for op in graph.ops))
    tensor_pools = [DEVICE] * len(index)
    op_pools = [DEVICE] * len(graph.ops)
    if not graph.one_stream:
        tensor_pools = [graph.pool_of(tensor) for tensor in index]
        op_pools = [device_of(op.stream) for op in graph.ops]
    pools = tuple(dict.fromkeys([DEVICE, *op_pools, *tensor_pools, *graph.pool_static_bytes]))
    number = {name: i for i, name in enumerate(streams)}
    pool_number = {name: i for i, name in enumerate(pools)}
    follows: list[list[int]] = [[]] * len(graph.ops)
    homes = [pool_number[pool] for pool in op_pools]
    for i, op in enumerate(() if graph.one_stream else graph.ops):
        if is_compute(op.stream):
            continue
        beside = [graph.pool_of(name) for name in (*op.writes, *op.reads)]
        devices = [pool for pool in beside if compute_stream_of(pool)]
        if devices:
            homes[i] = pool_number[devices[0]]
        if op.is_copy:
            found = {compute_stream_of(pool) for pool in beside}
            follows[i] = sorted(number[stream] for stream in found if stream in number)
    follow_start, follow_stream = _compressed(follows)
    statics = {**graph.pool_static_bytes, DEVICE: graph.static_bytes}

    def of_ops(values: list[Any], dtype: type) -> NDArray[Any]:
        return np.array(values, dtype=dtype)

    return GraphArrays(
        op_time_s=of_ops([op.time_s for op in graph.ops], np.float64),
        op_workspace_bytes=of_ops([op.workspace_bytes for op in graph.ops], np.int64),
        op_saving_workspace_bytes=of_ops(
            [
                op.workspace_bytes
                if op.saving_workspace_bytes is None
                else op.saving_workspace_bytes
                for op in graph.ops
            ],
            np.int64,
        ),
        op_phase=of_ops([PHASES.index(op.phase) for op in graph.ops], np.int8),
        op_once=of_ops([op.once for op in graph.ops], np.bool_),
        read_start=read_start,
        read_tensor=read_tensor,
        write_start=write_start,
        write_tensor=write_tensor,
        tensor_bytes=np.array(sizes, dtype=np.int64),
        tensor_producer=np.array(producer, dtype=np.int64),
        tensor_optional=optional,
        tensor_result=result,
        tensor_takes_over=takes_over,
        tensor_names=tuple(index),
        write_optional=np.array(write_optional, dtype=np.bool_),
        write_takes_over=np.array(write_takes_over, dtype=np.int64),
        op_required=of_ops([op.required for op in graph.ops], np.bool_),
        op_copy=of_ops([op.is_copy for op in graph.ops], np.bool_),
        op_stream=of_ops([number[op.stream] for op in graph.ops], np.int64),
        op_pool=of_ops([pool_number[pool] for pool in op_pools], np.int64),
        op_home=of_ops(homes, np.int64),
        tensor_pool=np.array([pool_number[pool] for pool in tensor_pools], dtype=np.int64),
        pool_static_bytes=np.array([statics.get(pool, 0) for pool in pools], dtype=np.int64),
        follow_start=follow_start,
        follow_stream=follow_stream,
        stream_names=streams,
        pool_names=pools,
    )
