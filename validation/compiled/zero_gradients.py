"""Given gradients that are zero, as one number for all entries, which takes no memory."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch

from ..capture.program import Call, Program, map_refs, refs
from ..torch_private.fake_tensors import fake_mode
from .fusible import fusible
from .group import FusedGroup


def with_zero_gradients(parts: Program, lacking: Collection[int]) -> Program | None:
    """`parts` with one number in the place of each given gradient of `lacking`.

    All entries of such a gradient are the same number in memory: its strides are zero. Calls,
    values and names stay those of `parts`.

    Parameters
    ----------
    parts
        A program of single ops, as groups are made of.
    lacking
        Positions among the tangents of `parts`.

    Returns
    -------
    Program or None
        ``None`` if a result is such a gradient, or if an op that is in no group reads one: kernels
        may copy it.
    """
    values, storages = list(parts.values), list(parts.storages)
    zeros = {parts.tangents[i] for i in lacking}
    for v in zeros:
        value = values[v]
        values[v] = replace(value, stride=(0,) * len(value.shape))
        storages[value.storage] = replace(storages[value.storage], size_bytes=value.dtype.itemsize)
    found = replace(parts, values=values, storages=storages)
    for i, call in enumerate(parts.calls):
        if i == parts.seed or not zeros & set(refs((call.args, call.kwargs))):
            continue
        if not call.is_view:
            if not fusible(found, call) or call.random:
                return None
            continue
        for v, strides in _looked_at(found, call).items():
            if any(strides):
                return None
            values[v] = replace(values[v], stride=strides)
            zeros.add(v)
    results = {*parts.gradients.values(), *parts.input_gradients.values(), *parts.outputs}
    return None if results & zeros else found


def keeps_layouts(program: Program) -> bool:
    """Whether the groups of `program` give outputs in its layouts, whatever those of their inputs.

    By a run on tensors without memory, for groups that read a tensor of which all entries are one.
    """
    values = program.values
    for call in program.calls:
        if not isinstance(call.target, FusedGroup):
            continue
        inputs = list(refs(call.args))
        if not any(values[v].shape and not any(values[v].stride) for v in inputs):
            continue
        with fake_mode():
            made = call.target.uncompiled(*(_example(program, v) for v in inputs))
        rows = zip(call.outputs, made, strict=True)
        if any(v >= 0 and tensor.stride() != values[v].stride for v, tensor in rows):
            return False
    return True


def _looked_at(program: Program, call: Call) -> dict[int, tuple[int, ...]]:
    """The strides of the outputs of a view."""
    with fake_mode():
        made = call.target(
            *map_refs(call.args, lambda v: _example(program, v)),
            **map_refs(call.kwargs, lambda v: _example(program, v)),
        )
    rows = zip(call.outputs, made if call.is_tuple else (made,), strict=False)
    return {v: tensor.stride() for v, tensor in rows if v >= 0}


def _example(program: Program, v: int) -> torch.Tensor:
    """A tensor in the form of a value."""
    value = program.values[v]
    return torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=value.device)
