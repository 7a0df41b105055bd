"""Views as one step from the tensor that was computed, with sizes that are known beforehand.

A view is free for the memory and not for the processor: each op of a chain of views goes through
PyTorch's dispatcher. Compiled code reads and writes tensors of fixed layouts, so that the shape,
the strides and the offset of each view are known when the schedule is made.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ..capture.program import Call, Program, Ref, map_refs, refs
from ..torch_private.storage_refs import reinterpreted
from .fusible import HEAVY
from .group import FusedGroup

aten = torch.ops.aten


def bake_views(program: Program) -> Program:
    """`program` with each view taken from its root at once, where the root's layout is certain.

    Roots are outputs of compiled groups and of products of matrices, and tensors that exist before
    the step. Other kernels may lay their results out otherwise than was traced. O(views).
    """
    baked = replace(program, calls=list(program.calls), values=list(program.values))
    offsets: dict[int, tuple[int, int]] = {}
    for index, call in enumerate(program.calls):
        if not call.is_view:
            continue
        sources = list(dict.fromkeys(refs((call.args, call.kwargs))))
        if len(sources) != 1:
            continue
        [source] = sources
        root, base = offsets.get(source, (source, 0))
        if source not in offsets and not _certain(program, source):
            continue
        if call.target is aten.as_strided.default and program.values[root].call < 0:
            continue  # its offset counts from the storage, where a tensor that is given may lie
        for v, offset in _looked_at(program, call, source).items():
            offsets[v] = root, base + offset
            _bake(baked, index, v, root, base + offset)
    _take_once(baked, offsets)
    return baked


def view_offsets(program: Program) -> dict[int, int]:
    """Views -> where they begin in the tensors that they are taken from, in entries, as traced.

    Views of views count from the first; those whose offset is not known are left out.
    """
    found: dict[int, int] = {}
    for call in program.calls:
        sources = list(dict.fromkeys(refs((call.args, call.kwargs)))) if call.is_view else []
        if len(sources) == 1:
            base = found.get(sources[0], 0)
            rows = _looked_at(program, call, sources[0]).items()
            found.update((v, base + offset) for v, offset in rows)
    return found


def _take_once(baked: Program, offsets: dict[int, tuple[int, int]]) -> None:
    """Let calls that read equal views of one root read the same one."""
    first: dict[object, int] = {}
    same: dict[int, int] = {}
    for v, place in offsets.items():
        value = baked.values[v]
        same[v] = first.setdefault((place, value.shape, value.stride), v)
    for index, call in enumerate(baked.calls):
        if any(same.get(v, v) != v for v in refs((call.args, call.kwargs))):
            baked.calls[index] = replace(
                call,
                args=map_refs(call.args, lambda v: Ref(same.get(v, v))),
                kwargs=map_refs(call.kwargs, lambda v: Ref(same.get(v, v))),
                takes_over=same.get(call.takes_over, call.takes_over),
            )


def _certain(program: Program, v: int) -> bool:
    """Whether the tensor `v` is laid out as it was traced."""
    made = program.values[v].call
    if made < 0:
        return program.storages[program.values[v].storage].kind in ("static", "input")
    target = program.calls[made].target
    return isinstance(target, FusedGroup) or target in _PRODUCTS


_PRODUCTS = HEAVY - {aten.convolution.default, aten.convolution_backward.default}


def _looked_at(program: Program, call: Call, source: int) -> dict[int, int]:
    """The outputs of a view with their offsets in `source`, as far as they are as was traced."""
    value = program.values[source]
    base = torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device="meta")
    try:
        made = call.target(
            *map_refs(call.args, lambda _: base), **map_refs(call.kwargs, lambda _: base)
        )
    except (RuntimeError, TypeError, NotImplementedError):
        return {}
    found = {}
    for v, tensor in zip(call.outputs, made if call.is_tuple else (made,), strict=False):
        if v < 0 or not isinstance(tensor, torch.Tensor):
            continue
        meant = program.values[v]
        same = tensor.dtype == meant.dtype == value.dtype and tuple(tensor.shape) == meant.shape
        same = same and tensor.stride() == meant.stride
        if same and not (tensor.is_conj() or tensor.is_neg()):
            found[v] = int(tensor.storage_offset())
    return found


def _bake(baked: Program, index: int, v: int, root: int, offset: int) -> None:
    value, call = baked.values[v], baked.calls[index]
    again = replace(
        call,
        target=reinterpreted,
        args=(Ref(root), tuple(value.shape), tuple(value.stride), offset),
        kwargs={},
        outputs=[v],
        is_tuple=False,
    )
    if call.is_tuple:
        baked.calls.append(again)
        baked.values[v] = replace(value, call=len(baked.calls) - 1, position=0)
    else:
        baked.calls[index] = again
