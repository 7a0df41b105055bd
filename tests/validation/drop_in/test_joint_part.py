"""What a joint graph becomes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.backend import session_of  # noqa: E402
from torch import nn  # noqa: E402


def test_names_and_roles():
    """Parameters are static, outputs are held, statistics update with the forward half."""
    torch._dynamo.reset()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def forward(self, x):
            return self.norm(self.fc(x))

    options = {"budget": 10**9}
    torch.compile(Net(), backend="schedsim", options=options)(
        torch.randn(8, 4)
    ).square().sum().backward()
    (part,) = session_of(options).parts
    assert any("fc" in name and "weight" in name for name in part.program.parameters)
    assert {name.partition(".")[0] for name in part.graph.op_names} >= {"fc", "norm", "grad"}
    assert part.output_bytes() == part.given_bytes() == 8 * 4 * 4
    assert part.gradient_bytes == (16 + 4 + 4 + 4) * 4
    assert part.input_bytes() == 8 * 4 * 4
    torch._dynamo.reset()


def test_open_sizes_are_formulas():
    """A second shape, where torch was not told otherwise, has a graph for all to come."""
    torch._dynamo.reset()
    options = {"budget": 10**9, "effort": 0.2}
    step = torch.compile(nn.Sequential(nn.Linear(4, 4)), backend="schedsim", options=options)
    for length in (8, 9, 10):
        step(torch.randn(length, 4)).square().sum().backward()
    fixed, varying = session_of(options).parts
    assert not fixed.sizes.names
    assert varying.sizes.traced == (9,)
    assert varying.output_bytes((9,)) == 9 * 16 == varying.output_bytes((18,)) // 2
    torch._dynamo.reset()
