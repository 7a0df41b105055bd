"""Messages between tensor-parallel ranks, part by part beside the products that need or make them.

Megatron (``--tp-comm-overlap``, user buffers of Transformer Engine) cuts a gathered sequence into
as many parts as ranks: a product begins with the rank's own part, while the next one comes over the
copy engines. So does a sum: a part is sent while the next is made. Backward, a product's gradient
of its input is beside what is gathered, and that of its weights beside what is scattered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .fabric import Fabric
from .tape import RankOp


def with_overlapped_tensor(
    ops: Sequence[RankOp], fabric: Fabric, ranks: int, *, backward: bool
) -> tuple[RankOp, ...]:
    """`ops` of a layer, its messages shortened to what the products beside them do not hide.

    One part of the product is beside nothing.
    """
    made = {name: op for op in ops for name in op.writes}

    def hidden_s(message: RankOp) -> float:
        if message.kind == "gather":
            beside = [op for op in ops if set(op.reads) & message.writes.keys()]
        else:
            beside = _makers(message.reads, made)
        seconds = sum(op.compute_s(fabric) for op in beside if op.kind == "product")
        return (seconds / 2 if backward else seconds) * (ranks - 1) / ranks

    return tuple(
        replace(op, link_s=max(0.0, op.link_s - hidden_s(op))) if op.stream == "tensor" else op
        for op in ops
    )


def _makers(tensors: Sequence[str], made: dict[str, RankOp]) -> list[RankOp]:
    """The products that make `tensors`, through sums of what several make."""
    found: list[RankOp] = []
    for name in tensors:
        op = made.get(name)
        if op is None:
            continue
        found += _makers(op.reads, made) if op.name.startswith("add ") else [op]
    return found
