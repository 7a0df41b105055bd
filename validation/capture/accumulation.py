"""Sums of gradients in place, as autograd computes them."""

from __future__ import annotations

import torch

from ..torch_private.op_modes import schema_name
from .program import Call, Program, refs
from .to_graph import result_storages

aten = torch.ops.aten


def add_in_place(program: Program) -> None:
    """Let sums of gradients overwrite one of their parts, in the run that reads that part last.

    The autograd engine does so where nothing else holds the part (``InputBuffer`` in
    torch/csrc/autograd). A sum that kept both parts would hold a third tensor of their size, which
    for a tied embedding is the largest tensor of a language model. Gradients that the loss computed
    in its forward are scaled in place, too.
    """
    given = {program.values[v].storage for v in program.tangents}  # the caller may hold these
    results = frozenset({*result_storages(program), *given})
    for call in program.calls:
        if call.is_gradient_sum and call.target is aten.add.Tensor and not call.kwargs:
            parts = list(refs(call.args))
            if len(parts) == 2:
                call.takes_over = _overwritten(program, call, parts, results)
                call.overwriting = aten.add_.Tensor
        elif call.target is aten.mul.Tensor and not call.kwargs:
            parts = [v for v in refs(call.args) if _is_kept_gradient(program, v)]
            if parts:
                call.takes_over = _overwritten(program, call, parts[:1], results)
                call.overwriting = aten.mul_.Tensor


def _is_kept_gradient(program: Program, value: int) -> bool:
    """Whether `value` is a gradient that a loss computed in forward, to be scaled in backward."""
    maker = program.values[value].call
    name = schema_name(program.calls[maker].target) if maker >= 0 else ""
    return name == "schedsim::chunked_cross_entropy"


def _overwritten(program: Program, call: Call, parts: list[int], results: frozenset[int]) -> int:
    """The first part that the sum fits into exactly; -1 where there is none."""
    values, storages = program.values, program.storages
    total = values[call.outputs[0]]
    if len({values[part].storage for part in parts}) < len(parts):
        return -1
    for part in parts:
        held = values[part]
        storage = storages[held.storage]
        fits = (held.shape, held.stride, held.dtype) == (total.shape, total.stride, total.dtype)
        fits = fits and storage.size_bytes == storages[total.storage].size_bytes
        if fits and storage.kind == "computed" and held.storage not in results:
            return part
    return -1
