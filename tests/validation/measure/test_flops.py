"""Floating-point operations of a piece of work."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.measure import count_flops  # noqa: E402


def test_flops_of_a_step_are_those_of_its_products():
    """Forward 2mnk, backward twice that."""
    layer = torch.nn.Linear(30, 20, bias=False)
    x = torch.ones(10, 30, requires_grad=True)
    assert count_flops(lambda: layer(x).sum().backward()) == 3 * 2 * 10 * 20 * 30
