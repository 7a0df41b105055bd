"""Products are lent a workspace on a CUDA device elsewhere."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.capture import capture  # noqa: E402
from schedsim.validation.costs import measured_costs, roofline_costs  # noqa: E402
from schedsim.validation.costs.library_workspaces import (  # noqa: E402
    BEFORE_HOPPER_BYTES,
    CAPABILITY,
    HOPPER_BYTES,
    LT_BYTES,
)
from schedsim.validation.torch_private.tested_versions import minor_version  # noqa: E402

from schedsim.workloads.devices import DEVICES  # noqa: E402


def test_every_cuda_device_has_a_capability():
    """A new device of the table is not forgotten here."""
    others = {"mi300x", "cpu"}
    assert set(CAPABILITY) == set(DEVICES) - others


class Products(torch.nn.Module):
    """Every kind of product of a step, also those that the libraries take differently."""

    def __init__(self, dtype=torch.float32, device="cpu"):
        super().__init__()
        made = {"dtype": dtype, "device": device}
        self.biased = torch.nn.Linear(64, 64, **made)
        self.plain = torch.nn.Linear(64, 64, bias=False, **made)
        self.narrow = torch.nn.Linear(64, 1, **made)
        self.bilinear = torch.nn.Bilinear(8, 8, 4, **made)
        self.vector = torch.nn.Parameter(torch.randn(64, **made))
        self.stack = torch.nn.Parameter(torch.randn(3, 64, 64, **made))

    def forward(self, x):
        """The sum of all."""
        one = self.plain(torch.relu(self.biased(x)))
        square, vector = self.plain.weight, self.vector
        found = [
            self.narrow(one),
            self.bilinear(x[:, :8].contiguous(), x[:, 8:16].contiguous()),
            torch.bmm(self.stack, self.stack),
            torch.addmv(vector, square, vector),
            torch.addmm(one, one, square),
            torch.addmm(vector.sum(), one, square),
            torch.addmm(one[:1], one, square),
            torch.addmm(vector, one, square, beta=0.5),
            torch.addmm(vector, one, square, alpha=0.5),
            torch.addmm(one[:, :1], one, square),
            torch.addmm(one.t(), one.t(), one.t()),
        ]
        return sum(tensor.float().sum() for tensor in found) + vector @ vector


def workspaces(captured, costs):
    """Of each product: the name of its op and its workspace."""
    targets = {call.name: str(call.target) for call in captured.program.calls}
    kinds = ("mm", "mv", "dot", "linear")
    return [
        (targets[name], size)
        for name, size in costs.workspace_bytes.items()
        if any(kind in targets[name] for kind in kinds)
    ]


@pytest.mark.parametrize(
    ("device", "most"), [("a100-80gb", BEFORE_HOPPER_BYTES), ("h200", HOPPER_BYTES), ("cpu", 0)]
)
def test_each_product_of_a_device_elsewhere_has_its_workspace(device, most):
    """A bias vector makes it cuBLASLt's; on the CPU there is none."""
    kernels = {} if device == "cpu" else {"kernels": "cuda"}
    captured = capture(torch.nn.Linear(64, 64), torch.randn(32, 64), lambda y: y.sum(), **kernels)
    found = dict(workspaces(captured, roofline_costs(captured, device)))
    assert found == {
        "aten.addmm.default": min(most, LT_BYTES),
        "aten.mm.default": most,
    }


def test_a_number_that_is_added_to_a_product_is_cublas_own():
    """It has no stride that could be looked at."""

    class Shifted(torch.nn.Linear):
        def forward(self, x):
            return torch.addmm(self.bias.sum(), x, self.weight).sum()

    captured = capture(Shifted(64, 64), torch.randn(32, 64), kernels="cuda")
    found = workspaces(captured, roofline_costs(captured, "h100"))
    assert ("aten.addmm.default", HOPPER_BYTES) in found


@pytest.mark.skipif(
    minor_version(torch.__version__) < (2, 15),
    reason="before torch 2.15 a workspace stays, and is no product's own",
)
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_workspaces_are_those_that_the_device_is_asked_for(dtype):
    """Up to copies of operands of which neither stride is 1, here of some KiB."""
    major = torch.cuda.get_device_capability()
    name = next(name for name, capability in CAPABILITY.items() if capability == major)
    x = torch.randn(64, 64, device="cuda", dtype=dtype)
    captured = capture(Products(dtype, "cuda"), x)
    told = workspaces(captured, roofline_costs(captured, name))
    real = workspaces(captured, measured_costs(captured, "cuda", use_cache=False, target_s=0.0))
    assert len(told) > 20
    for (op, size), (same, measured) in zip(told, real, strict=True):
        assert op == same
        assert 0 <= measured - size < 2**16, (op, size, measured)
