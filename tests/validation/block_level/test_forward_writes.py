"""A forward that writes its own parameters, or tensors that no module has registered."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.block_level.chain_capture import capture_chain  # noqa: E402
from torch import nn  # noqa: E402

from schedsim.errors import UnsupportedError  # noqa: E402


class Scaled(nn.Module):
    """Halves its scale in every forward."""

    def __init__(self, scale):
        super().__init__()
        self.layer, self.scale = nn.Linear(8, 8), scale

    def forward(self, x):
        with torch.no_grad():
            self.scale.mul_(0.5)
        return torch.tanh(self.layer(x)) * self.scale


class Moved(nn.Module):
    """Moves a second encoder behind its first one, between the blocks and the output."""

    def __init__(self):
        super().__init__()
        self.fast, self.slow = (nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))
        self.slow.requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            for mine, its in zip(self.slow.parameters(), self.fast.parameters(), strict=True):
                mine.mul_(0.5).add_(its, alpha=0.5)
        return self.fast(x) - self.slow(x)


def captured(model):
    return capture_chain(model, torch.randn(4, 8), lambda y: y.square().mean(), rounds=0)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (Moved, "slow.0.weight"),
        (
            lambda: nn.Sequential(*(Scaled(nn.Parameter(torch.ones(8))) for _ in range(3))),
            "0.scale",
        ),
    ],
)
def test_a_parameter_that_the_forward_writes_is_refused_and_left_as_it_was(make, name):
    torch.manual_seed(0)
    model = make()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(UnsupportedError, match=f"writes the parameter {name}"):
        captured(model)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_a_tensor_that_is_no_buffer_is_left_as_it_was():
    """The planned step, which would write it twice, is found to be another when it is compared."""
    model = nn.Sequential(*(Scaled(torch.ones(8)) for _ in range(3)))
    captured(model)
    assert [block.scale.tolist() for block in model] == [[1.0] * 8] * 3


def test_an_input_that_the_forward_writes_is_left_as_it_was():
    model, x = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8), nn.Tanh()), torch.randn(4, 8)
    before = x.clone()
    with pytest.raises(UnsupportedError, match="changes its input in place"):
        capture_chain(model, x, lambda y: y.square().mean(), rounds=0)
    assert torch.equal(x, before)
