"""A compiled step is counted as the partitioner cuts it."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from schedsim.validation.memory_tests import step_peak
from torch import nn

from schedsim.errors import UnsupportedError


class Pointwise(nn.Module):
    """A chain of cheap ops, which the partitioner runs again rather than keep."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1000))

    def forward(self, x):
        for _ in range(6):
            x = (x * self.weight).sin()
        return x.sum()


def test_pointwise_ops_are_run_again_in_the_backward():
    """Eager keeps two tensors an op pair; the partitioner next to none."""
    given = (Pointwise(), (torch.zeros(1000),))
    eager, cut = step_peak(*given), step_peak(*given, compiled=True)
    assert cut.compiled
    assert not eager.compiled
    assert eager.by_role()["kept"] >= 11 * 4000
    assert cut.by_role().get("kept", 0) <= 4000
    assert any(tensor.name.startswith("recompute.") for tensor in cut.tensors)


class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        y = self.layer(x)
        return y.sum() * y.sum().item()


def test_a_step_that_compile_would_break_is_refused():
    """Its graphs have no one boundary between forward and backward."""
    with pytest.raises(UnsupportedError, match="no single graph"):
        step_peak(Broken(), (torch.zeros(1, 2),), compiled=True)
