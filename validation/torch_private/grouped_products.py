"""Grouped matrix products (`torch._grouped_mm`) of types that torch refuses.

Kernels take float32 and float16 since torch 2.10; up to 2.14 the rule for fake tensors refuses all
but bfloat16, so that a mixture of experts could not be traced as it runs. Float64, in which a
step's rounding is judged, no kernel takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_impls import op_implementations_checks

from .op_modes import TorchDispatchMode

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


class WideGroupedProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes grouped products of float64, a group at a time, while it is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the op; a grouped product of float64 by ordinary products."""
        if func in _OPS and args[0].dtype is torch.float64:
            return _by_group(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _by_group(
    first: Tensor, second: Tensor, offs: Tensor | None = None, bias: Any = None, *_: Any, **__: Any
) -> Tensor:
    """The product; `offs` has the ends of the groups in the dimension that has no group of its own.

    Rows and columns behind the last end belong to no group, and are zero.
    """
    if offs is None:
        made = torch.bmm(first, second)
        return made if bias is None else made + bias.unsqueeze(-2)
    ends: list[int] = offs.tolist()
    bounds = list(zip([0, *ends], ends, strict=False))
    if first.dim() == second.dim():  # groups of what is summed over
        parts = [first[:, a:b] @ second[a:b] for a, b in bounds]
        made = torch.stack(parts)
    elif first.dim() == 2:
        made = first.new_zeros(first.shape[0], second.shape[-1])
        for i, (a, b) in enumerate(bounds):
            made[a:b] = first[a:b] @ second[i]
            if bias is not None:
                made[a:b] += bias[i]
        return made
    else:
        made = first.new_zeros(first.shape[1], second.shape[-1])
        for i, (a, b) in enumerate(bounds):
            made[:, a:b] = first[i] @ second[:, a:b]
    return made if bias is None else made + bias


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
