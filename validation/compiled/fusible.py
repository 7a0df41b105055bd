"""Which ops inductor fuses into loops, and which are separate kernels."""

from __future__ import annotations

from typing import Any

import torch

from ..capture.program import Call, Program, refs
from ..torch_private.op_modes import OpOverload, schema_name, schema_of

aten = torch.ops.aten

HEAVY = frozenset(
    {
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.baddbmm.default,
        aten.convolution.default,
        aten.convolution_backward.default,
    }
)
"""Kernels of a library, which are quicker unfused."""

_REDUCTIONS = (
    aten.sum.default,
    aten.sum.dim_IntList,
    aten.mean.default,
    aten.mean.dim,
    aten.amax.default,
    aten.amin.default,
    aten.var_mean.correction,
    aten.var.correction,
    aten.any.default,
    aten.any.dim,
    aten.prod.default,
    aten.prod.dim_int,
    aten.argmax.default,
)
_MOVES = (
    aten.clone.default,
    aten.where.self,
    aten.full.default,
    aten.full_like.default,
    aten.zeros.default,
    aten.zeros_like.default,
    aten.ones.default,
    aten.scalar_tensor.default,
    aten._to_copy.default,
    aten.gather.default,
    aten.embedding.default,
    aten.index.Tensor,
    aten.cat.default,
    aten.constant_pad_nd.default,
    aten.scatter.value,
    aten.select_scatter.default,
    aten.slice_scatter.default,
    aten.copy.default,
    aten.avg_pool2d.default,
    aten._unsafe_index.Tensor,
)
_INDICES_OF_OFFSETS = "prims::_low_memory_max_pool_offsets_to_indices"
_POOLING = ("prims::_low_memory_max_pool_with_offsets", _INDICES_OF_OFFSETS)
"""What inductor makes of the forward of max pooling."""
_DRAWS = ("prims::inductor_random", "prims::inductor_randint")
_NOT = (aten.native_dropout.default,)


def fusible_target(target: Any) -> bool:
    """Whether inductor turns `target` into a loop that other ops can join."""
    if not isinstance(target, OpOverload) or target in _NOT or schema_of(target).is_mutable:
        return False
    if target in _REDUCTIONS or target in _MOVES or is_draw(target) or is_iota(target):
        return True
    if schema_name(target) in _POOLING:
        return True
    return torch.Tag.pointwise in target.tags or is_convert(target)


def elementwise_target(target: Any) -> bool:
    """Whether a result's element needs one element of each argument, and little time."""
    if target in (aten.where.self, aten.full.default, aten.scalar_tensor.default):
        return True
    return fusible_target(target) and (torch.Tag.pointwise in target.tags or is_convert(target))


def fusible(program: Program, call: Call) -> bool:
    """Whether inductor turns `call` into a loop that other ops can join.

    It makes no loops of complex numbers: each op on them is a kernel of its own, with a tensor.
    """
    return fusible_target(call.target) and not _has_complex(program, call)


def elementwise(program: Program, call: Call) -> bool:
    """Whether `call` is fusible, and `elementwise_target`."""
    return elementwise_target(call.target) and not _has_complex(program, call)


def _has_complex(program: Program, call: Call) -> bool:
    values = (*(v for v in call.outputs if v >= 0), *refs((call.args, call.kwargs)))
    return any(program.values[v].dtype.is_complex for v in values)


def is_draw(target: Any) -> bool:
    """Whether `target` makes random numbers from a seed."""
    return schema_name(target) in _DRAWS


def is_convert(target: Any) -> bool:
    """Whether `target` changes a number format."""
    return _named(target, "prims::convert_element_type")


def is_iota(target: Any) -> bool:
    """Whether `target` makes a range of numbers."""
    return _named(target, "prims::iota")


def is_indices_of_offsets(target: Any) -> bool:
    """Whether `target` makes places in an image of places within windows of pooling."""
    return _named(target, _INDICES_OF_OFFSETS)


def _named(target: Any, name: str) -> bool:
    return schema_name(target) == name
