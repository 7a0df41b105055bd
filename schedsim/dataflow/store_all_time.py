"""The time of a step on several streams when nothing is recomputed or copied."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..errors import InvalidScheduleError
from .op import Op


def store_all_makespan(ops: Sequence[Op], inputs: Collection[str]) -> float:
    """Seconds from the first start to the last end when `ops` run once each, in their order.

    An op starts when the op before it on its stream has ended and all that it reads is written.
    Without copies and capacities nothing else delays an op, so one pass over the ops gives the same
    times as `schedsim.simulation.engine`. O(ops + reads + writes).

    Parameters
    ----------
    ops
        The required ops of a graph, in its order.
    inputs
        Tensors that are there before the step.

    Raises
    ------
    InvalidScheduleError
        An op reads a tensor that no earlier op writes: only a copy would.
    """
    ready_s = dict.fromkeys(inputs, 0.0)
    free_s: dict[str, float] = {}
    for k, op in enumerate(ops):
        start_s = free_s.get(op.stream, 0.0)
        for tensor in op.reads:
            if tensor not in ready_s:
                raise InvalidScheduleError(
                    f"schedule[{k}]: {op.name} reads {tensor}, which does not exist yet",
                    rule="missing input",
                    run_index=k,
                    op_name=op.name,
                    hint="only a copy writes it: a step without copies cannot run",
                )
            start_s = max(start_s, ready_s[tensor])
        free_s[op.stream] = start_s + op.time_s
        ready_s.update(dict.fromkeys(op.writes, free_s[op.stream]))
    return max(free_s.values())
