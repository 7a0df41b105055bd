"""A small layer for tests of ranks, whose parameters are shards of a size that is easy to find."""

from __future__ import annotations

import torch
from torch import nn


class ResidualLayer(nn.Module):
    """Two linear layers and what they are added to: 8 `width`^2 + 5 `width` parameters."""

    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        """Same shape."""
        return x + self.down(torch.tanh(self.up(x)))
