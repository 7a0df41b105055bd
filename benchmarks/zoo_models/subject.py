"""A model of the zoo, and the table that families add theirs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Subject:
    """A model with one batch.

    Attributes
    ----------
    inputs, keywords
        Of the model's forward.
    targets
        What `loss` takes besides the output.
    loss
        A scalar of the output; ``None`` for a model whose output has its own.
    """

    model: nn.Module
    inputs: tuple[Any, ...] = ()
    targets: tuple[Any, ...] = ()
    loss: Callable[..., Tensor] | None = None
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def loss_of(self, output: Any) -> Tensor:
        """The scalar of a step."""
        if self.loss is not None:
            return self.loss(output, *self.targets)
        found: Tensor = output if isinstance(output, Tensor) else output.loss
        return found


@dataclass(frozen=True)
class Entry:
    """A builder, its family, and who wrote the model: a package, or ``"here"``."""

    name: str
    family: str
    source: str
    build: Callable[[], Subject]

    def make(self) -> Subject:
        """The model from its own seed, in training mode: the same every time."""
        torch.manual_seed(0)
        subject = self.build()
        subject.model.train()
        return subject


ENTRIES: dict[str, Entry] = {}


def entry(family: str, source: str = "here") -> Callable[[Callable[[], Subject]], Any]:
    """Add the decorated builder to the zoo."""

    def add(build: Callable[[], Subject]) -> Callable[[], Subject]:
        name = build.__name__.strip("_").replace("_", "-")
        assert name not in ENTRIES, name
        ENTRIES[name] = Entry(name, family, source, build)
        return build

    return add


def mean_square(output: Any, *targets: Tensor) -> Tensor:
    """A loss for models without one, where it does not matter what is learnt."""
    found: Tensor = output.square().mean() if not targets else (output - targets[0]).square().mean()
    return found
