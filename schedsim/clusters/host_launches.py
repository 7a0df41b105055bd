"""Layers that take longer to launch than to compute: the device waits for its host.

The host launches the kernels of a layer one after the other, ahead of the device. Where that takes
longer than the layer does on the device, step after step, the layer takes as long as its launches.
A graph that is launched as a whole (a CUDA graph) takes the host no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .fabric import Fabric
from .tape import RankOp
from .token_routes import KERNEL_S
from .training import Training


def launches(op: RankOp) -> int:
    """How many kernels the host launches for `op`.

    Examples
    --------
    >>> launches(RankOp("q", (), {})), launches(RankOp("sent", (), {}, link_s=30 * KERNEL_S))
    (1, 31)
    """
    small = round(op.link_s / KERNEL_S) if op.stream == "compute" else 0
    return op.kernels + small


def as_launched(ops: Sequence[RankOp], training: Training, fabric: Fabric) -> tuple[RankOp, ...]:
    """`ops` of a layer's forward or backward, in which the device waits for the host.

    Messages count as if nothing ran beside them, so that no layer waits that does not have to.
    """
    if training.libraries.traced:
        return tuple(ops)
    by_code = training.compiled and training.state != "megatron"
    each_s = fabric.compiled_launch_s if by_code else fabric.launch_s
    device_s = sum(op.link_s for op in ops)
    device_s += sum(op.compute_s(fabric) for op in ops if op.stream == "compute")
    wait_s = each_s * sum(map(launches, ops)) - device_s
    if wait_s <= 0:
        return tuple(ops)
    computing = sum(launches(op) for op in ops if op.stream == "compute")
    return tuple(
        replace(op, link_s=op.link_s + wait_s * launches(op) / computing)
        if op.stream == "compute"
        else op
        for op in ops
    )
