"""The workspace of cuBLAS for one product: temporary bytes of an op on a CUDA device.

Since PyTorch 2.15 the workspace is allocated from the caching allocator at each product and freed
with it (before, it stayed with the handle). A product with a bias vector goes to cuBLASLt, which
gets less. The workspace of cuDNN for convolutions is not known without the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..capture.program import Call, Program, refs

aten = torch.ops.aten

# aten/src/ATen/cuda/CublasHandlePool.cpp: ":4096:2:16:8" (two of 4096 KiB, eight of 16 KiB), and
# ":4096:8" on compute capability 9.0. Both, and cuBLASLt's 1 MiB, as 2.15's allocator sees them.
BEFORE_HOPPER_BYTES = 2 * 4096 * 1024 + 8 * 16 * 1024
HOPPER_BYTES = 8 * 4096 * 1024
LT_BYTES = 2**20

CAPABILITY: Mapping[str, tuple[int, int]] = {
    "v100": (7, 0),
    "a100-40gb": (8, 0),
    "a100-80gb": (8, 0),
    "rtx3090": (8, 6),
    "rtx4090": (8, 9),
    "l40s": (8, 9),
    "h100": (9, 0),
    "h200": (9, 0),
}
"""Compute capability of those devices of ``schedsim.workloads.devices`` that are CUDA's."""

_PRODUCTS = {aten.mm, aten.bmm, aten.baddbmm, aten.mv, aten.addmv, aten.dot, aten.addmm}


def workspace_bytes(device_name: str) -> int:
    """Workspace bytes of a product on the device called `device_name`; 0 if it is not CUDA's.

    Examples
    --------
    >>> workspace_bytes("a100-80gb"), workspace_bytes("h200"), workspace_bytes("cpu")
    (8519680, 33554432, 0)
    """
    capability = CAPABILITY.get(device_name)
    if capability is None:
        return 0
    return HOPPER_BYTES if capability == (9, 0) else BEFORE_HOPPER_BYTES


def workspace_of(program: Program, call: Call, device_name: str) -> int:
    """Workspace bytes of one run of `call` on the device called `device_name`."""
    packet: Any = getattr(call.target, "overloadpacket", None)
    most = workspace_bytes(device_name)
    if packet not in _PRODUCTS or not most:
        return 0
    first = next(refs(call.args), None)
    if packet is aten.addmm and first is not None and len(program.values[first].shape) == 1:
        return LT_BYTES
    return most
