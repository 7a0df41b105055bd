"""Formats that a step computes in."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.guards.seen_formats import SeenFormats  # noqa: E402
from torch import nn  # noqa: E402


@pytest.mark.parametrize("form", [None, torch.bfloat16, torch.float16])
def test_autocast_within_a_model_is_seen(form):
    """Forward and backward; results are those without looking."""
    torch.manual_seed(0)
    model, x = nn.Linear(4, 4), torch.randn(3, 4)

    def step():
        model.zero_grad()
        with torch.autocast("cpu", form or torch.bfloat16, enabled=form is not None):
            y = model(x)
        y.float().sum().backward()
        return model.weight.grad.clone()

    plain = step()
    with SeenFormats() as seen:
        found = step()
    assert seen.coarsest is form
    assert torch.equal(found, plain)


def test_the_format_of_the_fewest_digits_counts():
    with SeenFormats() as seen:
        torch.ones(2).half()
        torch.ones(2).bfloat16()
    assert seen.coarsest is torch.bfloat16


def test_a_format_within_a_branch_is_seen():
    """Of `torch.cond`, of which a mode would see the results alone."""
    x = torch.ones(2)
    with SeenFormats() as seen:
        torch.cond(x.sum() > 0, lambda x: (x.bfloat16() * 3).float(), torch.sin, (x,))
    assert seen.coarsest is torch.bfloat16
