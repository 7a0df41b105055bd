"""Micro-batches give inputs that need a gradient the one of the whole batch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import InfeasibleBudgetError  # noqa: E402

LOSS = nn.functional.mse_loss


class Shifted(nn.Module):
    """A frozen line, which reads a batch and what is the same for all of it."""

    def __init__(self):
        super().__init__()
        self.line = nn.Sequential(*(nn.Linear(16, 16) for _ in range(3))).requires_grad_(False)

    def forward(self, x, shift):
        return torch.tanh(self.line(x + shift))


def test_rows_get_their_part_and_what_all_parts_read_gets_the_sum():
    """Within the budget, in every step."""
    x, target = torch.randn(64, 16, requires_grad=True), torch.randn(64, 16)
    model, shift = Shifted(), torch.zeros(16, requires_grad=True)
    LOSS(model(x, shift), target).backward()
    expected = [x.grad, shift.grad]
    module = schedsim.rematerialize(
        model, (x, shift, target), "100%", LOSS, level="op", accumulate=4, effort=0.1
    )
    for _ in range(2):
        x.grad = shift.grad = None
        [reading] = AllocatorMeter().read(lambda: module(x, shift, target).backward())
        assert all(map(torch.allclose, [x.grad, shift.grad], expected))
        resident = storage_bytes([[*model.parameters()], x, shift, target])
        assert resident + reading.peak_bytes <= module.plan.budget_bytes


def test_a_frozen_model_fits_by_the_way_that_its_refusal_names():
    """Nothing can be recomputed: the largest working set is that of the whole batch."""
    # Not convolutions, whose scratch memory differs between builds of torch.
    frozen = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64)).requires_grad_(False)
    image, target = torch.randn(512, 16, requires_grad=True), torch.randn(512, 64)
    options = {"loss": LOSS, "level": "op", "effort": 0.1}
    with pytest.raises(InfeasibleBudgetError) as error:
        schedsim.rematerialize(frozen, (image, target), "70%", **options)
    assert "accumulate='auto'" in error.value.hint
    assert "optimizer" not in error.value.hint
    step = schedsim.rematerialize(frozen, (image, target), "70%", accumulate="auto", **options)
    step(image, target).backward()
    found, image.grad = image.grad, None
    LOSS(frozen(image), target).backward()
    assert torch.allclose(found, image.grad, rtol=1e-4, atol=1e-6)
