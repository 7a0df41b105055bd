"""The parameter gradients that the backward of each part is the first to make, and their bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..guards.differential import without_step_hooks
from ..measure import storage_bytes
from ..measure.storage import local
from .parts import Part


def trained_parameters(model: nn.Module, loss: Any) -> list[nn.Parameter]:
    """Parameters that get a gradient: the model's, and those of the loss where it is a module."""
    found = [*model.parameters()]
    found += [*loss.parameters()] if isinstance(loss, nn.Module) else []
    return [p for p in dict.fromkeys(found) if p.requires_grad]


def shared_parameters(parts: Sequence[Part], loss: Any) -> tuple[tuple[nn.Parameter, ...], ...]:
    """For each part, the trained parameters that a later part or the loss uses, too.

    Empty where parameters are sharded: what holds their gradients is not ours.
    """
    later: dict[int, nn.Parameter] = {}
    if isinstance(loss, nn.Module):
        later = {id(p): p for p in loss.parameters()}
    found: list[tuple[nn.Parameter, ...]] = []
    for part in reversed(parts):
        own = {id(p): p for module in part.modules for p in module.parameters() if p.requires_grad}
        if any(local(p) is not p for p in own.values()):
            return ()
        found.append(tuple(p for key, p in own.items() if key in later))
        later |= own
    return tuple(reversed(found)) if any(found) else ()


def forget_gradients(model: nn.Module, loss: Any) -> None:
    """Drop the gradients, as ``zero_grad`` does."""
    for parameter in trained_parameters(model, loss):
        parameter.grad = None


@contextmanager
def given_gradients(model: nn.Module, loss: Any, *, resident: bool) -> Iterator[None]:
    """Give trained parameters gradients of zeros, or none, in the block; then restore their own."""
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
    """Replace existing gradients by zeros during the block, and restore them after it.

    Hooks that wait for a gradient, such as an optimizer's step, do not see the gradients of the
    block. Yields whether there are any gradients. Sharded parameters always count as having some:
    what holds those gradients is not ours to free or to count.
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
    """Counts the gradients that appear part by part, from the last part to the first."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = parameters
        self._there = self._ids()

    def forget(self) -> None:
        """Drop the gradients that this part has made, so that it can make them again."""
        for parameter in self.parameters:
            if id(parameter) not in self._there:
                parameter.grad = None

    def settle(self) -> int:
        """Bytes of the gradients that this part has made, which stay from now on."""
        new = [p.grad for p in self.parameters if id(p) not in self._there]
        self._there = self._ids()
        return storage_bytes([gradient for gradient in new if gradient is not None])

    def _ids(self) -> set[int]:
        return {id(p) for p in self.parameters if p.grad is not None}
