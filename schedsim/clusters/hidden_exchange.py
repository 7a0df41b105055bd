"""The exchange of tokens of one micro-batch beside the computation of another.

Megatron (``--overlap-moe-expert-parallel-comm``) runs the forward of a layer of one micro-batch
with the backward of a layer of the one before: tokens come back to their ranks backward beside the
attention forward, go to their experts forward beside the experts' backward, are returned backward
beside the experts' forward, and come back forward beside the attention's backward
(``model_chunk_schedule_plan.py``). What takes longer than the computation beside it is waited for.
The kernels that send take processors away from those that compute, and matrix products of Hopper
take twice as long beside them (`schedsim.clusters.beside_messages`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .fabric import Fabric
from .tape import RankOp


def with_hidden_exchange(
    forward: Sequence[RankOp], backward: Sequence[RankOp], fabric: Fabric, sending: int
) -> tuple[tuple[RankOp, ...], tuple[RankOp, ...]]:
    """The ops of a layer, its exchanges shortened to what they add to the computation beside them.

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
        "arrived": backward[:last],
        "returned": backward[last:],
        "returned'": forward[:first],
        "arrived'": forward[first:],
    }

    def shortened(op: RankOp) -> RankOp:
        if op.name not in beside:
            return op
        return replace(op, link_s=_added_s(beside[op.name], op.link_s, fabric, sending))

    return tuple(map(shortened, forward)), tuple(map(shortened, backward))


def _added_s(ops: Sequence[RankOp], sent_s: float, fabric: Fabric, sending: int) -> float:
    """Seconds that computing `ops` takes longer, or that is waited for behind it, with an exchange.

    The exchange begins with them, and takes `sent_s`.
    """
    alone_s = now_s = 0.0
    for op in ops:
        if op.stream != "compute":
            continue
        left_s = op.compute_s(fabric) + op.link_s
        beside_s = max(0.0, sent_s - now_s)
        alone_s += left_s
        if fabric.persistent and op.kind == "product":
            now_s += left_s + min(left_s, beside_s)
        else:
            speed = 1 - sending / fabric.processors
            now_s += min(left_s / speed, left_s + beside_s * (1 - speed))
    return max(now_s, sent_s) - alone_s
