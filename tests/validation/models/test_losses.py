"""Losses with their targets inside: closed forms."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.models.losses import (  # noqa: E402
    CrossEntropy,
    MeanSquaredError,
    PixelCrossEntropy,
    class_targets,
)


def test_equal_logits_cost_the_logarithm_of_their_number():
    """Whatever the targets, in whatever shape; in float32 although the logits are not."""
    torch.manual_seed(0)
    loss = CrossEntropy(class_targets(7, 2, 3))(torch.zeros(2, 3, 7, dtype=torch.bfloat16))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(math.log(7))
    pixels = PixelCrossEntropy(class_targets(5, 2, 4, 4))(torch.zeros(2, 5, 4, 4))
    assert pixels.item() == pytest.approx(math.log(5))


def test_squares_are_averaged():
    """(1 + 4) / 2."""
    assert MeanSquaredError(torch.tensor([1.0, 0.0]))(torch.tensor([0.0, 2.0])).item() == 2.5


def test_targets_are_buffers():
    """They move with the loss, and are counted among what is resident."""
    torch.manual_seed(0)
    target = class_targets(3, 100)
    assert set(target.tolist()) == {0, 1, 2}
    assert dict(CrossEntropy(target).named_buffers())["target"] is target
