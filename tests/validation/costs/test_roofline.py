"""Times of ops on a device that is not here: the slower of arithmetic and memory traffic."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from costed_steps import call_named, two_layers  # noqa: E402
from schedsim.validation.capture import capture  # noqa: E402
from schedsim.validation.costs import roofline_costs  # noqa: E402
from schedsim.validation.costs.work import work_of  # noqa: E402
from torch import nn  # noqa: E402

from schedsim.errors import SchedsimError  # noqa: E402


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


def test_roofline_of_substituted_attention():
    """CUDA's flash kernel counted on a machine without it: the same products as above."""
    model = nn.Linear(8, 8, bias=False).to(torch.bfloat16)

    def loss(output):
        x = output.view(2, 16, 2, 4).transpose(1, 2)
        return F.scaled_dot_product_attention(x, x, x).float().sum()

    x = torch.zeros(2, 16, 8, dtype=torch.bfloat16)
    captured = capture(model, (x,), loss, kernels="cuda")
    work = work_of(captured.program, call_named(captured, "loss.flash_attention"))
    # The width of 4 is padded to 8, which the kernel does compute.
    assert work.flops == 2 * 2 * 2 * 2 * 16 * 16 * 8
    assert roofline_costs(captured, "h100").time_s["grad.loss.flash_attention"] > 0


def test_roofline_of_a_device_elsewhere():
    """By the data sheet of the A100: 19.5 Tflop/s in fp32, 312 in bf16, 2039 GB/s."""
    costs = roofline_costs(two_layers(), "a100-80gb")
    moved = 4 * (2 * 64 * 32 + 32 * 32 + 32)
    assert costs.time_s["0.addmm"] == pytest.approx(max(131072 / 19.5e12, moved / 2039e9))
    half = roofline_costs(two_layers(torch.bfloat16), "a100-80gb")
    assert half.time_s["1.relu"] == pytest.approx(costs.time_s["1.relu"] / 2)
    with pytest.raises(SchedsimError, match="unknown"):
        roofline_costs(two_layers(), "a1000")
