"""The deep multilayer perceptron of the textbooks."""

from __future__ import annotations

import torch
from torch import nn

from .losses import MeanSquaredError
from .workload import Workload, builder


class Layer(nn.Sequential):
    """Linear, ReLU in place, and dropout where asked."""

    def __init__(self, hidden: int, dropout: float) -> None:
        parts: list[nn.Module] = [nn.Linear(hidden, hidden), nn.ReLU(inplace=True)]
        if dropout:
            parts.append(nn.Dropout(dropout))
        super().__init__(*parts)


@builder
def build_mlp(
    *, layers: int = 20, hidden: int = 1024, batch: int = 32, dropout: float = 0.0
) -> Workload:
    """`layers` equal layers of width `hidden`, with a squared error.

    The default is the example by which checkpointing is usually explained: 20 layers, 1024 wide,
    a batch of 32. Parameters: ``layers * (hidden**2 + hidden)``.
    """
    model = nn.Sequential(*(Layer(hidden, dropout) for _ in range(layers)))
    return Workload(
        model, (torch.randn(batch, hidden),), MeanSquaredError(torch.randn(batch, hidden))
    )
