"""From a model and the inputs of a step to a schedule of that step."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.step_planning import BlockLevelWarning  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


class Odd(nn.Module):
    """A block with a branch on data."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        """Never changes sign, though no tracer can know."""
        return torch.tanh(self.linear(x)) if float(x.sum()) < 1e9 else -x


def test_what_cannot_be_captured_by_op_is_planned_by_block_and_says_so():
    model, x = nn.Sequential(*(Odd() for _ in range(4))), torch.randn(64, 16)
    with pytest.warns(BlockLevelWarning, match="cannot be captured op by op"):
        module = schedsim.rematerialize(model, x, "90%", lambda y: y.mean())
    assert module.level == "block"
    module(x).backward()
    with pytest.raises(schedsim.UnsupportedError):
        schedsim.rematerialize(model, x, "90%", lambda y: y.mean(), level="op")
