"""A workload and a link as the arrays that the kernels read, and tokens back to names."""

from __future__ import annotations

from typing import Any

import numpy as np

from schedsim.dataflow.copies import Copy
from schedsim.dataflow.graph import Graph
from schedsim.kernels.record import Ints
from schedsim.plans.offloading import Offloading
from schedsim.simulation.schedule import Schedule

from ._timeline import LinkedGraph

# An upper limit on any sum of bytes.
_MOST_BYTES = 2**53


def link_graph(graph: Graph, budget_bytes: int, offloading: Offloading) -> LinkedGraph:
    """`graph`, without copies, and the link as arrays for the kernels."""
    arrays = graph.arrays
    sizes = arrays.tensor_bytes.tolist()
    host_bytes = offloading.host_bytes
    return LinkedGraph(
        op_s=arrays.op_time_s,
        workspace=arrays.op_workspace_bytes,
        saving_workspace=arrays.op_saving_workspace_bytes,
        once=arrays.op_once,
        read_start=arrays.read_start,
        reads=arrays.read_tensor,
        write_start=arrays.write_start,
        writes=arrays.write_tensor,
        size=arrays.tensor_bytes,
        producer=arrays.tensor_producer,
        optional=arrays.tensor_optional,
        result=arrays.tensor_result,
        takes_over=arrays.tensor_takes_over,
        out_s=np.array([offloading.d2h.time_s(size) for size in sizes], dtype=np.float64),
        back_s=np.array([offloading.h2d.time_s(size) for size in sizes], dtype=np.float64),
        device_room=max(-_MOST_BYTES, min(_MOST_BYTES, budget_bytes) - graph.static_bytes),
        host_room=_MOST_BYTES if host_bytes is None else min(host_bytes, _MOST_BYTES),
    )


def token_names(graph: Graph, tokens: Any) -> list[str]:
    """The names of the ops and copies behind `tokens`."""
    num_ops, tensors = graph.num_ops, graph.arrays.tensor_names
    names = []
    for token in tokens.tolist():
        if token < num_ops:
            names.append(graph.op_names[token])
        elif token < num_ops + len(tensors):
            names.append(Copy(tensors[token - num_ops]).name)
        else:
            names.append(Copy(tensors[token - num_ops - len(tensors)], back=True).name)
    return names


def schedule_tokens(graph: Graph, schedule: Schedule) -> Ints:
    """The tokens behind the runs and copies of a schedule."""
    tensors = graph.arrays.tensor_names
    names = [*graph.op_names, *(Copy(t).name for t in tensors)]
    names += [Copy(t, back=True).name for t in tensors]
    token = {name: i for i, name in enumerate(names)}
    of_names = np.array([token.get(name, -1) for name in schedule.op_names], dtype=np.int64)
    return of_names[schedule.runs]
