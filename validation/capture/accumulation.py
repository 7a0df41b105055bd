"""Sums of gradients in place, as autograd takes them."""

from __future__ import annotations

import torch

from .program import Call, Program, refs
from .to_graph import result_storages

aten = torch.ops.aten


def add_in_place(program: Program) -> None:
    """Let sums of gradients overwrite one of their parts, in the run that reads that part last.

    The autograd engine does so where nobody else holds the part (``InputBuffer`` in
    torch/csrc/autograd). A sum that kept both would hold a third tensor of their size: of a tied
    embedding, the largest of a language model.
    """
    results = frozenset(result_storages(program))
    for call in program.calls:
        if call.is_gradient_sum and call.target is aten.add.Tensor and not call.kwargs:
            parts = list(refs(call.args))
            if len(parts) == 2:
                call.takes_over = _overwritten(program, call, parts, results)
                call.overwriting = aten.add_.Tensor


def _overwritten(program: Program, call: Call, parts: list[int], results: frozenset[int]) -> int:
    """The first part that the sum fits into exactly; -1 where there is none."""
    values, storages = program.values, program.storages
    total = values[call.outputs[0]]
    if values[parts[0]].storage == values[parts[1]].storage:
        return -1
    for part in parts:
        held = values[part]
        storage = storages[held.storage]
        fits = (held.shape, held.stride, held.dtype) == (total.shape, total.stride, total.dtype)
        fits = fits and storage.size_bytes == storages[total.storage].size_bytes
        if fits and storage.kind == "computed" and held.storage not in results:
            return part
    return -1
