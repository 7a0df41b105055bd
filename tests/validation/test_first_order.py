"""What asks a planned step for more than its gradients is told so, in a line."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import UnsupportedError  # noqa: E402


@pytest.fixture(scope="module", params=["op", "block"])
def planned(request):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)))
    x = torch.randn(16, 8)
    loss = lambda y: y.square().mean()  # noqa: E731
    return schedsim.rematerialize(model, x, "100%", loss, level=request.param), x


@pytest.mark.parametrize("how", ["grad", "backward"])
def test_second_derivatives_are_refused(planned, how):
    """Gradients that are silently constant would train something else."""
    module, x = planned
    parameters = list(module.parameters())
    ways = {
        "grad": lambda: torch.autograd.grad(module(x), parameters, create_graph=True),
        "backward": lambda: module(x).backward(create_graph=True),
    }
    with pytest.raises(UnsupportedError, match="create_graph=True"):
        ways[how]()
    module.zero_grad()


def test_gradients_by_autograd_grad(planned):
    """At the op level they are given, by block refused; the plain call is as before."""
    module, x = planned
    parameters = list(module.parameters())
    module.zero_grad()
    module(x).backward()
    expected = [p.grad for p in parameters]
    module.zero_grad()
    if module.level == "op":
        found = torch.autograd.grad(module(x), parameters)
        assert all(map(torch.equal, found, expected))
    else:
        with pytest.raises(UnsupportedError, match="ask a schedule of blocks"):
            torch.autograd.grad(module(x), parameters)
        with pytest.raises(UnsupportedError, match="ask a schedule of blocks"):
            module(x).backward(inputs=parameters)
    assert all(p.grad is None for p in parameters)
