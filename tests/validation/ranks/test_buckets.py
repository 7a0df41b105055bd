"""Buckets of gradients beside a wrapped model: a copy of what is averaged."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.ranks.buckets import bucket_bytes  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


def model() -> nn.Module:
    """24 floats, 3 numbers of two bytes, and a frozen weight."""
    made = nn.Sequential(nn.Linear(3, 6), nn.Linear(1, 3, bias=False).bfloat16(), nn.Linear(5, 5))
    made[2].requires_grad_(False)
    return made


@pytest.fixture
def wrapped(monkeypatch):
    """Pretends that a wrapper runs the step of a module."""

    def wrap(module, *, view=False, ignored=()):
        wrapper = SimpleNamespace(
            module=module, gradient_as_bucket_view=view, parameters_to_ignore=set(ignored)
        )
        monkeypatch.setattr(DistributedDataParallel, "_active_ddp_module", wrapper)

    return wrap


def test_outside_of_a_wrapper_there_are_none(wrapped):
    """Nor inside of another module's."""
    one = model()
    assert bucket_bytes(one, gradients_resident=True) is None
    wrapped(model())
    assert bucket_bytes(one, gradients_resident=True) is None


def test_every_trained_parameter_has_a_copy(wrapped):
    """In its own format; what the wrapper ignores has none."""
    one = model()
    wrapped(one)
    for resident in (True, False):
        assert bucket_bytes(one, gradients_resident=resident) == 4 * 24 + 2 * 3
    wrapped(one, ignored={"0.weight"})
    assert bucket_bytes(one, gradients_resident=True) == 4 * 6 + 2 * 3


def test_gradients_that_are_the_buckets_count_once(wrapped):
    """Where they are counted already; else the buckets are the gradients."""
    one = model()
    wrapped(one, view=True)
    assert bucket_bytes(one, gradients_resident=True) == 0
    assert bucket_bytes(one, gradients_resident=False) == 4 * 24 + 2 * 3
