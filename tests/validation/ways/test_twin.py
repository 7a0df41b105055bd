"""A second model of the same tensors, whose modules may be changed."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.ways.twin import become, twin  # noqa: E402
from torch import nn  # noqa: E402


def model() -> nn.Module:
    """A module that stands in two places, a missing one, and an attribute."""
    made = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    made.add_module("again", made[0])
    made.add_module("none", None)
    made.note = ["kept"]
    return made


def test_modules_are_others_and_tensors_the_same():
    """The same structure: a module used twice is one there too."""
    one = model()
    two = twin(one)
    assert type(two) is type(one)
    assert two[0] is not one[0]
    assert two.again is two[0]
    assert two.none is None
    assert two.note is one.note
    pairs = zip(one.named_parameters(), two.named_parameters(), strict=True)
    assert all(a is b and m == n for (m, a), (n, b) in pairs)
    assert two.state_dict().keys() == one.state_dict().keys()


def test_whatever_replaces_a_tensor_does_so_in_both():
    """Casting, loading, and buffers that a step moves."""
    one = model()
    two = twin(one)
    one.double()
    assert all(p.dtype is torch.float64 for p in two.parameters())
    two.load_state_dict({key: value * 0 for key, value in two.state_dict().items()})
    assert not any(p.any() for p in one.parameters())
    two[1](torch.randn(4, 2).double())
    assert one[1].num_batches_tracked == 1


class _Doubling:
    """Twice what the class behind it gives."""

    def forward(self, x):
        return self.factor * super().forward(x)


def test_a_twins_module_takes_another_class():
    """It keeps its own behind; the model itself does not change."""
    one = model()
    two = twin(one)
    become(two[0], _Doubling, factor=2)
    x = torch.randn(3, 2)
    assert torch.equal(two[0](x), 2 * one[0](x))
    assert isinstance(two[0], nn.Linear)
    assert type(two[0]).__name__ == "DoublingLinear"
    assert not hasattr(one[0], "factor")
    assert type(one[0]) is nn.Linear
