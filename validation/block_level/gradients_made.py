"""Which gradients of parameters the backward of each part is the first to make, and their bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..guards.differential import without_step_hooks
from ..measure import storage_bytes
from ..measure.storage import local


def trained_parameters(model: nn.Module, loss: Any) -> list[nn.Parameter]:
    """Parameters that get a gradient: the model's, and the loss's where the loss is a module."""
    found = [*model.parameters()]
    found += [*loss.parameters()] if isinstance(loss, nn.Module) else []
    return [p for p in dict.fromkeys(found) if p.requires_grad]


def forget_gradients(model: nn.Module, loss: Any) -> None:
    """As ``zero_grad`` does."""
    for parameter in trained_parameters(model, loss):
        parameter.grad = None


@contextmanager
def given_gradients(model: nn.Module, loss: Any, *, resident: bool) -> Iterator[None]:
    """Let every trained parameter have a gradient in the block, of zeros, or none; then its own."""
    parameters = trained_parameters(model, loss)
    own = [(p, p.grad) for p in parameters]
    try:
        for parameter, _ in own:
            parameter.grad = torch.zeros_like(parameter) if resident else None
        yield
    finally:
        for parameter, gradient in own:
            parameter.grad = gradient


@contextmanager
def own_gradients(model: nn.Module, loss: Any) -> Iterator[bool]:
    """Gradients of zeros during the block where there are some, and the ones that were there after.

    Hooks that wait for a gradient, an optimizer's step among them, do not see those of the block.
    Gives whether any are there. Those of sharded parameters always are: what holds them is ours
    neither to free nor to count.
    """
    parameters = trained_parameters(model, loss)
    sharded = any(local(p) is not p for p in parameters)
    resident = sharded or any(p.grad is not None for p in parameters)
    with (
        given_gradients(model, loss, resident=resident),
        without_step_hooks(parameters),
    ):
        yield resident


class MadeGradients:
    """Counts the gradients that appear, piece by piece, from the last part to the first."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = parameters
        self._there = self._ids()

    def forget(self) -> None:
        """Take away what this piece has made, so that it can make that again."""
        for parameter in self.parameters:
            if id(parameter) not in self._there:
                parameter.grad = None

    def settle(self) -> int:
        """Bytes that this piece has made, which stay from now on."""
        new = [p.grad for p in self.parameters if id(p) not in self._there]
        self._there = self._ids()
        return storage_bytes([gradient for gradient in new if gradient is not None])

    def _ids(self) -> set[int]:
        return {id(p) for p in self.parameters if p.grad is not None}
