"""Times of ops on a device that is not here: the slower of arithmetic and memory traffic."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.capture import capture  # noqa: E402
from schedsim.validation.costs import roofline_costs  # noqa: E402
from torch import nn  # noqa: E402


@pytest.mark.parametrize(
    ("device", "product", "with_bias"),
    [("a100-80gb", 8_519_680, 2**20), ("h200", 33_554_432, 2**20), ("cpu", 0, 0)],
)
def test_products_are_charged(device, product, with_bias):
    """2 * 4 MiB + 8 * 16 KiB before compute capability 9.0, 8 * 4 MiB on it; a bias takes 1 MiB."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8, bias=False))
    captured = capture(model, torch.randn(4, 8), lambda y: y.sum())
    found = roofline_costs(captured, device).workspace_bytes
    assert {size for name, size in found.items() if "addmm" in name} == {with_bias}
    products = {size for name, size in found.items() if name.split(".")[-1].startswith("mm")}
    assert products == {product}
    assert all(size == 0 for name, size in found.items() if "relu" in name)
