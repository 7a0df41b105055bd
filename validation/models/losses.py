"""Losses with their targets inside: what a builder returns as its third item."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class CrossEntropy(nn.Module):
    """Mean cross entropy of logits against class numbers, the classes in the last dimension.

    Parameters
    ----------
    target
        Class numbers, int64, of the shape of the logits without their last dimension.
    """

    target: Tensor

    def __init__(self, target: Tensor) -> None:
        super().__init__()
        self.register_buffer("target", target)

    def forward(self, logits: Tensor) -> Tensor:
        """The loss, a scalar, computed in float32."""
        flat = logits.reshape(-1, logits.shape[-1]).float()
        return functional.cross_entropy(flat, self.target.reshape(-1))


class PixelCrossEntropy(nn.Module):
    """Mean cross entropy of ``(batch, classes, height, width)`` logits, a class for every pixel."""

    target: Tensor

    def __init__(self, target: Tensor) -> None:
        super().__init__()
        self.register_buffer("target", target)

    def forward(self, logits: Tensor) -> Tensor:
        """The loss, a scalar."""
        return functional.cross_entropy(logits.float(), self.target)


class MeanSquaredError(nn.Module):
    """Mean squared difference from a target of the output's shape."""

    target: Tensor

    def __init__(self, target: Tensor) -> None:
        super().__init__()
        self.register_buffer("target", target)

    def forward(self, output: Tensor) -> Tensor:
        """The loss, a scalar."""
        return functional.mse_loss(output.float(), self.target)


def class_targets(num_classes: int, *shape: int) -> Tensor:
    """Random class numbers, int64, of `shape`."""
    return torch.randint(num_classes, shape)
