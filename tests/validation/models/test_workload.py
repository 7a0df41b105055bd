"""What a builder returns, moved and cast as torch moves modules."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.models.workload import Workload, num_parameters  # noqa: E402
from torch import nn  # noqa: E402


def test_casting_takes_floats_and_leaves_whole_numbers():
    """Casts the model, tensors among the inputs, and a loss that is a module."""
    loss = nn.Linear(4, 1)
    work = Workload(nn.Linear(4, 4), (torch.ones(2, 4), torch.arange(3), "text"), loss)
    half = work.to(torch.bfloat16)
    assert half.model.weight.dtype is torch.bfloat16
    assert [one.dtype for one in half.inputs[:2]] == [torch.bfloat16, torch.int64]
    assert half.inputs[2] == "text"
    assert half.loss.weight.dtype is torch.bfloat16


def test_a_loss_that_is_a_function_stays():
    """As does none."""

    def loss(out):
        return out.sum()

    assert Workload(nn.Linear(1, 1), (), loss).to(torch.float64).loss is loss
    assert Workload(nn.Linear(1, 1), (), None).to("meta").loss is None
    assert Workload(nn.Linear(1, 1), (torch.ones(2),), None).to("meta").inputs[0].is_meta


def test_shared_parameters_count_once():
    """By tensor, not by name."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    assert num_parameters(model) == 24
    model[1].weight = model[0].weight
    assert num_parameters(model) == 15
