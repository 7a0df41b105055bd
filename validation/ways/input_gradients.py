"""Gradients of a batch's inputs, from those of its micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..torch_private.pytrees import tree_flatten, tree_leaves, tree_unflatten
from .microbatch import MicroBatch


def differentiable(tree: Any) -> list[Tensor]:
    """The tensors of `tree` that need a gradient, in order."""
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor) and t.requires_grad]


class InputGradients:
    """Collects the gradients of inputs that need one, an image that is optimised for one.

    Attributes
    ----------
    whole
        For each such input the gradient for the whole batch; ``None`` before the first part has
        given one.
    """

    def __init__(self, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        self._leaves = tree_leaves((inputs, dict(keywords)))
        self._places = [
            i for i, t in enumerate(self._leaves) if isinstance(t, Tensor) and t.requires_grad
        ]
        self.whole: list[Tensor | None] = [None for _ in self._places]

    def begin(self, part: MicroBatch) -> MicroBatch:
        """`part` with leaves of its own, at which the gradients of its step end."""
        if not self._places:
            return part
        leaves, spec = tree_flatten((part.inputs, part.keywords))
        for i in self._places:
            leaves[i] = leaves[i].detach().requires_grad_()
        inputs, keywords = tree_unflatten(leaves, spec)
        return replace(part, inputs=inputs, keywords=keywords)

    def end(self, part: MicroBatch) -> None:
        """Take over the gradients of `part`, whose backward has run."""
        found = tree_leaves((part.inputs, part.keywords)) if self._places else []
        for k, i in enumerate(self._places):
            gradient, of = found[i].grad, self._leaves[i]
            if gradient is None:
                continue
            whole = self.whole[k]
            if gradient.shape != of.shape:  # rows of the batch
                if whole is None:
                    whole = self.whole[k] = torch.zeros_like(of)
                whole[part.start : part.start + part.num_samples] = gradient
            else:  # every part has read all of it
                self.whole[k] = gradient if whole is None else whole.add_(gradient)
