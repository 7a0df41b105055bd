"""A graph as flat arrays: what the simulator and the planners' kernels read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .graph import Graph


@dataclass(frozen=True, slots=True)
class GraphArrays:
    """Ops and tensors by index; lists of lists in compressed form (``start`` has one more entry).

    Tensors stand in the order: graph inputs, then outputs in op order.

    Attributes
    ----------
    op_time_s : (num_ops,) float64
    op_workspace_bytes, op_saving_workspace_bytes : (num_ops,) int64
        Of a run that materialises no optional output, and of one that does.
    op_phase : (num_ops,) int8
        Index into `schedsim.graph.PHASES`.
    op_once : (num_ops,) bool
    read_start, read_tensor : (num_ops + 1,), (num_reads,) int64
    write_start, write_tensor : (num_ops + 1,), (num_writes,) int64
    tensor_bytes : (num_tensors,) int64
    tensor_producer : (num_tensors,) int64
        -1 for a graph input.
    tensor_optional, tensor_result : (num_tensors,) bool
    tensor_takes_over : (num_tensors,) int64
        The input tensor whose storage it takes over; -1 for none.
    tensor_names : tuple of str
    """

    op_time_s: NDArray[np.float64]
    op_workspace_bytes: NDArray[np.int64]
    op_saving_workspace_bytes: NDArray[np.int64]
    op_phase: NDArray[np.int8]
    op_once: NDArray[np.bool_]
    read_start: NDArray[np.int64]
    read_tensor: NDArray[np.int64]
    write_start: NDArray[np.int64]
    write_tensor: NDArray[np.int64]
    tensor_bytes: NDArray[np.int64]
    tensor_producer: NDArray[np.int64]
    tensor_optional: NDArray[np.bool_]
    tensor_result: NDArray[np.bool_]
    tensor_takes_over: NDArray[np.int64]
    tensor_names: tuple[str, ...]


def _compressed(lists: list[list[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    start = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum([len(one) for one in lists], out=start[1:])
    flat = np.fromiter((item for one in lists for item in one), dtype=np.int64, count=start[-1])
    return start, flat


def build_arrays(graph: Graph) -> GraphArrays:
    """`graph` as arrays; O(ops + tensors + reads)."""
    from .graph import PHASES

    index: dict[str, int] = {name: i for i, name in enumerate(graph.inputs)}
    sizes = list(graph.inputs.values())
    producer = [-1] * len(sizes)
    for i, op in enumerate(graph.ops):
        for tensor, size in op.writes.items():
            index[tensor] = len(sizes)
            sizes.append(size)
            producer.append(i)
    optional = np.zeros(len(sizes), dtype=np.bool_)
    takes_over = np.full(len(sizes), -1, dtype=np.int64)
    for op in graph.ops:
        for tensor in op.optional:
            optional[index[tensor]] = True
        for output, source in op.in_place.items():
            takes_over[index[output]] = index[source]
    result = np.zeros(len(sizes), dtype=np.bool_)
    result[[index[tensor] for tensor in graph.results]] = True
    read_start, read_tensor = _compressed([[index[t] for t in op.reads] for op in graph.ops])
    write_start, write_tensor = _compressed([[index[t] for t in op.writes] for op in graph.ops])

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
    )
