"""Bytes of the values of a step, and of what is always resident, by storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..measure import storage_bytes
from ..measure.storage import storages
from ..torch_private.pytrees import tree_flatten, tree_leaves
from ..torch_private.storage_refs import key_of, storage_key
from .parts import Part, StepInputs


def static_tensors(model: nn.Module, loss: Any) -> list[Tensor]:
    """Parameters and buffers of the model and of the loss, where that is a module."""
    found = [*model.parameters(), *model.buffers()]
    if isinstance(loss, nn.Module):
        found += [*loss.parameters(), *loss.buffers()]
    return found


def tensors_in(tree: Any) -> list[Tensor]:
    """The tensors in a tree."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def storage_keys(tree: Any) -> set[int]:
    """Keys of the storages under the tensors in a tree."""
    return {key_of(storage) for storage in storages(tree)}


@dataclass(frozen=True)
class Sizes:
    """Bytes of the values, and what is always resident."""

    value_bytes: tuple[int, ...]
    static_bytes: int
    needs_gradient: tuple[tuple[bool, ...], ...]

    @classmethod
    def of(
        cls,
        parts: Sequence[Part],
        values: Sequence[Any],
        step: StepInputs,
        model: nn.Module,
        loss: Any,
    ) -> Sizes:
        """The sizes of a step whose `values` exist, so that they can be inspected."""
        resident = static_tensors(model, loss)
        gradients = [t.grad for t in resident if t.grad is not None]
        side = [t for args, kwargs in step.side for t in tensors_in((args, kwargs))]
        # The loss and its gradient, two scalars, are alive through the whole backward.
        scalars = 2 * torch.get_default_dtype().itemsize
        static = storage_bytes([*resident, *gradients, *side]) + scalars
        known = storage_keys([*resident, *side])
        sizes = []
        for number, value in enumerate(values):
            tensors = [t for t in tensors_in(value) if storage_key(t) not in known]
            sizes.append(storage_bytes(tensors))
            if number == 0:
                known |= storage_keys(value)  # a part that passes the input on adds nothing
        needs: list[tuple[bool, ...]] = [tuple(False for _ in tree_flatten(values[0])[0])]
        for i, part in enumerate(parts):
            needs.append(_needs(part, step, values, values[i + 1], needs))
        return cls(tuple(sizes), static, tuple(needs))


def _needs(
    part: Part,
    step: StepInputs,
    values: Sequence[Any],
    output: Any,
    needs: Sequence[tuple[bool, ...]],
) -> tuple[bool, ...]:
    """Whether each leaf of a part's output has a gradient in training."""
    trains = any(p.requires_grad for module in part.modules for p in module.parameters())
    flows = any(any(needs[value]) for value in part.reads)
    if not (trains or flows):
        return tuple(False for _ in tree_flatten(output)[0])
    read = []
    for value in part.reads:
        leaves, spec = tree_flatten(values[value] if value else None)
        for i, wanted in enumerate(needs[value] if value else ()):
            if wanted:  # a new tensor with the same data, which requires a gradient
                leaves[i] = leaves[i].detach().requires_grad_()
        read.append(spec.unflatten(leaves))
    with torch.enable_grad():
        out = part.call(step, *read)
    return tuple(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in tree_flatten(out)[0])
