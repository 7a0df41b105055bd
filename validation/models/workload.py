"""What a builder returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Workload(NamedTuple):
    """A model, the positional inputs of one step, and its loss: ``loss(model(*inputs))``."""

    model: nn.Module
    inputs: tuple[Any, ...]
    loss: Callable[[Any], Tensor] | None

    def to(self, *arguments: Any, **keywords: Any) -> Workload:
        """Everything moved (or cast, where floating) as `torch.nn.Module.to` does."""
        model = self.model.to(*arguments, **keywords)
        inputs = tuple(_moved(item, arguments, keywords) for item in self.inputs)
        loss = self.loss.to(*arguments, **keywords) if isinstance(self.loss, nn.Module) else None
        return Workload(model, inputs, loss if loss is not None else self.loss)


def _moved(item: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if not isinstance(item, torch.Tensor):
        return item
    moved = item.to(*arguments, **keywords)
    # Whole numbers stay what they are, as in Module.to.
    return moved if item.is_floating_point() else moved.to(item.dtype)


def num_parameters(model: nn.Module) -> int:
    """Number of parameters, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters())
