"""The inputs of a step in parts of its batch, and what each part's loss counts."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.ways.microbatch import Splitter  # noqa: E402
from torch import nn  # noqa: E402

LOSS = nn.functional.mse_loss


def a_model(num=4):
    """A line of small blocks."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(num)))


def test_parts_cover_the_batch_in_order():
    x, mask = torch.arange(7), torch.ones(3)
    parts = Splitter(a_model(), LOSS, 3).parts((x, mask), {"y": x, "k": 2})
    assert [part.inputs[0].tolist() for part in parts] == [[0, 1], [2, 3], [4, 5, 6]]
    assert all(part.inputs[1] is mask for part in parts)
    assert sum(part.weight for part in parts) == pytest.approx(1.0)
