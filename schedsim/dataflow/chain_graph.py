"""A chain as a graph of ops, and as the flat arrays of that graph.

A chain is checked when it is made, and all its ops look alike. So this module makes the graph
without checking each op, and the arrays from columns over the stages. For 100,000 stages that takes
one second; lowering op by op, as for any graph, takes seven.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .arrays import GraphArrays
from .graph import Graph
from .op import PHASES, Op
from .streams import COMPUTE, DEVICE

if TYPE_CHECKING:
    from .chain import Chain


def lowered(chain: Chain) -> Graph:
    """The graph of `chain`, its arrays included: see `schedsim.dataflow.chain.Chain.graph`.

    O(stages) time and memory.
    """
    graph = Graph.unchecked(
        name=chain.name,
        ops=_ops(chain),
        inputs={"a0": chain.input_bytes},
        static_bytes=chain.static_bytes,
        results=_results(chain),
        recorded=chain.recorded,
    )
    if not chain.gradient_bytes:  # few chains have any: they take the way of any graph
        graph.__dict__["arrays"] = _arrays(chain)  # fills the `cached_property`
    return graph


def _results(chain: Chain) -> tuple[str, ...]:
    """Parameter gradients in the order in which they are made: ``g`` by the loss, then ``g<i>``."""
    num = chain.num_stages
    made = [(f"g{i + 1}" if i < num else "g", size) for i, size in enumerate(chain.gradient_bytes)]
    return tuple(name for name, size in reversed(made) if size)


def _ops(chain: Chain) -> tuple[Op, ...]:
    num = chain.num_stages
    forward: list[Op] = []
    backward: list[Op] = []
    made, beside = chain.gradient_bytes or (0,) * (num + 1), chain.beside_bytes
    previous = 0
    for i, stage in enumerate(chain.stages):
        output, residual = f"a{i + 1}", f"r{i + 1}"
        writes = {output: stage.output_bytes}
        reads = [f"d{i + 1}", f"a{i}", output]
        optional: tuple[str, ...] = ()
        if stage.saved_bytes > stage.output_bytes:
            writes[residual] = stage.saved_bytes - stage.output_bytes
            reads.append(residual)
            optional = (residual,)
        forward.append(
            Op(
                name=f"F{i}",
                phase="forward",
                time_s=stage.forward_s,
                workspace_bytes=stage.forward_workspace_bytes - beside[i],
                reads=(f"a{i}",),
                writes=writes,
                optional=optional,
                once=stage.rule == "keep",
                evicted=optional if stage.rule == "recompute" else (),
                saving_workspace_bytes=None
                if stage.saving_workspace_bytes is None
                else stage.saving_workspace_bytes - beside[i],
            )
        )
        backward.append(
            Op(
                name=f"B{i}",
                phase="backward",
                time_s=stage.backward_s,
                workspace_bytes=stage.backward_workspace_bytes - beside[i] - made[i],
                reads=tuple(reads),
                writes={
                    **({f"d{i}": previous} if i else {}),
                    **({f"g{i + 1}": made[i]} if made[i] else {}),
                },
            )
        )
        previous = stage.output_bytes
    loss = Op(
        name="loss",
        phase="loss",
        time_s=chain.loss_s,
        workspace_bytes=chain.loss_workspace_bytes - made[num],
        reads=(f"a{num}",),
        writes={f"d{num}": previous, **({"g": made[num]} if made[num] else {})},
    )
    return (*forward, loss, *reversed(backward))


def _arrays(chain: Chain) -> GraphArrays:
    """The arrays of the graph, column by column: F0..F{L-1}, the loss, B{L-1}..B0."""
    stages, num = chain.stages, chain.num_stages
    num_ops = 2 * num + 1
    output = np.array([stage.output_bytes for stage in stages], np.int64)
    residual = np.array([stage.saved_bytes for stage in stages], np.int64) - output
    keeps = residual > 0
    num_kept = int(keeps.sum())

    # Tensors: a0, then the output of each forward and its residual (if it has one), then dL..d1.
    outputs = np.arange(1, num + 1) + np.cumsum(keeps) - keeps  # index of a{i + 1}
    activations = np.concatenate(([0], outputs))
    gradients = 2 * num + num_kept - np.arange(num)  # index of d{i + 1}
    num_tensors = 1 + 2 * num + num_kept
    sizes = np.empty(num_tensors, np.int64)
    sizes[0] = chain.input_bytes
    sizes[outputs] = sizes[gradients] = output
    sizes[outputs[keeps] + 1] = residual[keeps]
    producer = np.full(num_tensors, -1, np.int64)
    producer[outputs] = np.arange(num)
    producer[outputs[keeps] + 1] = np.flatnonzero(keeps)
    producer[gradients] = num + np.arange(num, 0, -1) - 1
    optional = np.zeros(num_tensors, np.bool_)
    optional[outputs[keeps] + 1] = True

    last = np.arange(num - 1, -1, -1)  # stages in the order of their backward ops
    num_reads = np.concatenate((np.ones(num + 1, np.int64), 3 + keeps[last]))
    num_writes = np.concatenate((1 + keeps, np.ones(num + 1, np.int64)))
    num_writes[-1] = 0  # B0 gives no gradient of the input
    read_start, write_start = _starts(num_reads), _starts(num_writes)
    read = np.empty(read_start[-1], np.int64)
    read[: num + 1] = activations
    at = read_start[num + 1 : -1]
    read[at], read[at + 1], read[at + 2] = gradients[last], activations[last], outputs[last]
    read[at[keeps[last]] + 3] = outputs[last][keeps[last]] + 1

    phase = np.full(num_ops, PHASES.index("backward"), np.int8)
    phase[:num], phase[num] = PHASES.index("forward"), PHASES.index("loss")
    workspace = np.array(
        [
            *(stage.forward_workspace_bytes for stage in stages),
            chain.loss_workspace_bytes,
            *(stage.backward_workspace_bytes for stage in reversed(stages)),
        ],
        np.int64,
    )
    saving = workspace.copy()
    for i, stage in enumerate(stages):
        if stage.saving_workspace_bytes is not None:
            saving[i] = stage.saving_workspace_bytes
    names = ["a0"]
    for i, keeps_some in enumerate(keeps.tolist(), start=1):
        names += (f"a{i}", f"r{i}") if keeps_some else (f"a{i}",)
    return GraphArrays(
        op_time_s=np.array(
            [
                *(stage.forward_s for stage in stages),
                chain.loss_s,
                *(stage.backward_s for stage in reversed(stages)),
            ],
            np.float64,
        ),
        op_workspace_bytes=workspace,
        op_saving_workspace_bytes=saving,
        op_phase=phase,
        op_once=np.array(
            [*(stage.rule == "keep" for stage in stages), *[False] * (num + 1)], np.bool_
        ),
        read_start=read_start,
        read_tensor=read,
        write_start=write_start,
        write_tensor=np.arange(1, num_tensors),  # each is written once, in the order of the ops
        tensor_bytes=sizes,
        tensor_producer=producer,
        tensor_optional=optional,
        tensor_result=np.zeros(num_tensors, np.bool_),
        tensor_takes_over=np.full(num_tensors, -1, np.int64),
        tensor_names=(*names, *(f"d{i}" for i in range(num, 0, -1))),
        write_optional=optional[1:].copy(),
        write_takes_over=np.full(num_tensors - 1, -1, np.int64),
        op_required=np.ones(num_ops, np.bool_),
        op_copy=np.zeros(num_ops, np.bool_),
        op_stream=np.zeros(num_ops, np.int64),
        op_pool=np.zeros(num_ops, np.int64),
        op_home=np.zeros(num_ops, np.int64),
        tensor_pool=np.zeros(num_tensors, np.int64),
        pool_static_bytes=np.array([chain.static_bytes], np.int64),
        follow_start=np.zeros(num_ops + 1, np.int64),
        follow_stream=np.zeros(0, np.int64),
        stream_names=(COMPUTE,),
        pool_names=(DEVICE,),
    )


def _starts(counts: NDArray[Any]) -> NDArray[np.int64]:
    found = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=found[1:])
    return found
