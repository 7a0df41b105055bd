"""A forward without gradients runs as it is: where it exceeds the budget, a line has its bytes."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.beside.evaluations import Evaluations  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

LINE = "a forward without gradients takes about"


def lines_of(rows):
    """What is said of steps of 64 rows after rollouts of so many rows, within one budget."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
    x, many = torch.randn(64, 8), torch.randn(rows, 8)
    schedsim.rematerialize(model, (x,), 600_000, in_place=True, effort=0.1, check="never")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            with torch.no_grad():
                model(many)
            model(x).square().mean().backward()
            model.zero_grad()
    return [str(w.message) for w in caught if LINE in str(w.message)]


@pytest.mark.slow
def test_a_rollout_over_the_budget_is_said_once():
    (line,) = lines_of(1024)
    assert "1.1" in line.partition("about")[2][:6]  # two results of 1,024 rows are 1.05 MB
    assert lines_of(64) == []


def test_only_larger_batches_are_measured():
    found, device = Evaluations(), torch.device("cpu")

    def run(given):
        with found.measured(device, 100, given):
            torch.zeros(given)

    run(1000)
    assert found.peak_bytes == 4100
    with found.measured(device, 10**6, 10):
        torch.zeros(5000)
    assert found.peak_bytes == 4100
    with found.measured(device, 200, 1000):  # as before, beside more
        pass
    assert found.peak_bytes == 4200
    with pytest.raises(KeyError), found.measured(device, 0, 2000):
        raise KeyError
    assert [len(list(found.new_lines(4000))) for _ in range(2)] == [1, 0]
