"""The exchange of tokens of one micro-batch beside the computation of another.

Megatron (``--overlap-moe-expert-parallel-comm``) runs the forward of a layer of one micro-batch
with the backward of a layer of the one before: tokens come back to their ranks backward beside the
attention forward, go to their experts forward beside the experts' backward, are returned backward
beside the experts' forward, and come back forward beside the attention's backward
(``model_chunk_schedule_plan.py``). What takes longer than the computation beside it is waited for.
The kernels that send take processors away from those that compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .fabric import Fabric
from .tape import RankOp

PROCESSORS = 132
"""Processors of an H100."""


def with_hidden_exchange(
    forward: Sequence[RankOp], backward: Sequence[RankOp], fabric: Fabric, sending: int
) -> tuple[tuple[RankOp, ...], tuple[RankOp, ...]]:
    """The ops of a layer, its exchanges shortened to what computation beside them does not hide.

    Meanwhile `sending` processors compute nothing. What runs again does not hide anything. The
    first forwards of a pipeline and its last backwards, which have nothing beside them, count as
    the others.
    """
    experts = {op.name for op in forward} & {"arrived"}
    if not experts:
        return tuple(forward), tuple(backward)
    first = next(k for k, op in enumerate(forward) if op.name == "arrived")
    last = next(k for k, op in enumerate(backward) if op.name == "arrived'")
    beside = {
        "arrived": _compute_s(backward[:last], fabric),
        "returned": _compute_s(backward[last:], fabric),
        "returned'": _compute_s(forward[:first], fabric),
        "arrived'": _compute_s(forward[first:], fabric),
    }

    def shortened(op: RankOp) -> RankOp:
        if op.name not in beside:
            return op
        hidden_s = min(op.link_s, beside[op.name])
        return replace(op, link_s=op.link_s - hidden_s * (1 - sending / PROCESSORS))

    return tuple(map(shortened, forward)), tuple(map(shortened, backward))


def _compute_s(ops: Sequence[RankOp], fabric: Fabric) -> float:
    return sum(op.compute_s(fabric) + op.link_s for op in ops if op.stream == "compute")
