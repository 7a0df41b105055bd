"""The workspace of cuBLAS for one product: temporary bytes of an op on a CUDA device.

Since PyTorch 2.15 the workspace is allocated from the caching allocator at each product and freed
with it (before, it stayed with the handle). Products that add a bias vector, or in half precision
a matrix, go to cuBLASLt, which gets less. The workspace of cuDNN for convolutions is not known
without the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..capture.program import Call, Program, Value, refs

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

_PRODUCTS = {
    aten.mm,
    aten.bmm,
    aten.baddbmm,
    aten.mv,
    aten.addmv,
    aten.dot,
    aten.addmm,
    aten._addmm_activation,
    aten._trilinear,  # one product, inside
}


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
    """Workspace bytes of one run of `call` on the device called `device_name`.

    What cuBLAS gets for operands that PyTorch first copies, because neither of their strides is 1,
    is not counted.
    """
    packet: Any = getattr(call.target, "overloadpacket", None)
    most = workspace_bytes(device_name)
    if packet not in _PRODUCTS or not most:
        return 0
    if packet is aten._addmm_activation:
        return min(most, LT_BYTES)
    if packet is aten.addmm:
        added, one, two = (program.values[ref] for ref in list(refs(call.args))[:3])
        if _goes_to_lt(added, one, two, call.kwargs.get("beta", 1)):
            return LT_BYTES
    return most


def _goes_to_lt(added: Value, one: Value, two: Value, beta: Any) -> bool:
    """Whether ``beta * added + one @ two`` is cuBLASLt's, as PyTorch 2.15 chooses.

    A vector is added by cuBLASLt itself, a whole matrix only in half precision.
    """
    inner, columns = two.shape
    if inner < 2 or columns < 2 or not added.shape or added.stride[-1] != 1:
        return False
    whole = (one.shape[0], columns)
    if added.shape in ((columns,), (1, columns)):
        return bool(beta == 1)
    rows_follow = added.shape == whole and added.stride[0] == columns
    return rows_follow and added.dtype in (torch.float16, torch.bfloat16)
