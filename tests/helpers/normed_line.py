"""A small model of which much is known: parameters, buffers that change, and one output."""

from __future__ import annotations

from torch import nn


class NormedLine(nn.Module):
    """A product and a batch norm, to a number."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(self.linear(x)).sum()
