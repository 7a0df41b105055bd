"""Grouped matrix products (`torch._grouped_mm`) of float32 and float16 in a trace.

Kernels take these types since torch 2.10; up to 2.14 the rule for fake tensors refuses all but
bfloat16, so that a mixture of experts could not be traced as it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_impls import op_implementations_checks

_OPS = tuple(packet.default for packet in (getattr(torch.ops.aten, "_grouped_mm", None),) if packet)


@contextmanager
def grouped_products() -> Iterator[None]:
    """Within a trace, know the shape of a grouped product of each type that kernels take."""
    rule = (_OPS.__contains__, _shaped)
    op_implementations_checks.append(rule)
    try:
        yield
    finally:
        op_implementations_checks.remove(rule)


def _shaped(_mode: Any, _op: Any, first: Tensor, second: Tensor, *more: Any, **named: Any) -> Any:
    offsets = more[0] if more else named.get("offs")
    if first.dtype not in (torch.float32, torch.float16) or first.dtype != second.dtype:
        return NotImplemented  # torch's own rule
    groups = [_num_groups(first, offsets)] if first.dim() == second.dim() else []
    shape = [*groups, first.shape[-2], second.shape[-1]]
    if torch.version.cuda is None:
        return first.new_empty(shape)
    whole = 16 // first.element_size()
    wide = -(-shape[-1] // whole) * whole  # rows begin at multiples of 16 bytes
    strides = [shape[-2] * wide, wide, 1][-len(shape) :]
    return torch.empty_strided(shape, strides, dtype=first.dtype, device=first.device)


def _num_groups(first: Tensor, offsets: Tensor | None) -> Any:
    return first.shape[0] if first.dim() == 3 or offsets is None else offsets.shape[0]
