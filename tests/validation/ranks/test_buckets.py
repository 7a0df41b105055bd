"""Buckets of gradients beside a wrapped model: a copy of what is averaged."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.ranks.buckets import averaging, bucket_bytes_now  # noqa: E402
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

    def wrap(module, *, view=False, ignored=(), syncs=True):
        wrapper = SimpleNamespace(
            module=module,
            gradient_as_bucket_view=view,
            parameters_to_ignore=set(ignored),
            require_backward_grad_sync=syncs,
        )
        monkeypatch.setattr(DistributedDataParallel, "_active_ddp_module", wrapper)
        return wrapper

    return wrap


def test_outside_of_a_wrapper_there_are_none(wrapped):
    """Nor inside of another module's."""
    one = model()
    assert averaging(one) is None
    wrapped(model())
    assert averaging(one) is None


def test_every_trained_parameter_has_a_copy(wrapped):
    """In its own format; what the wrapper ignores has none."""
    one = model()
    wrapped(one)
    for resident in (True, False):
        assert averaging(one).bytes_beside(gradients_resident=resident) == 4 * 24 + 2 * 3
    wrapped(one, ignored={"0.weight"})
    assert averaging(one).bytes_beside(gradients_resident=True) == 4 * 6 + 2 * 3


def test_gradients_that_are_the_buckets_count_once(wrapped):
    """Where they are counted already; else the buckets are the gradients.

    What a step accumulates before any average lies beside the buckets.
    """
    one = model()
    wrapped(one, view=True)
    assert averaging(one).bytes_beside(gradients_resident=True) == 0
    assert averaging(one).bytes_beside(gradients_resident=False) == 4 * 24 + 2 * 3
    wrapped(one, view=True, syncs=False)
    assert averaging(one).bytes_beside(gradients_resident=True) == 4 * 24 + 2 * 3


def test_what_of_the_buckets_is_no_gradient_now(wrapped):
    """Those of the first layer are views of a bucket of 24 floats; the second has its own."""
    one = model()
    wrapper = wrapped(one, view=True)
    assert bucket_bytes_now(wrapper) == 4 * 24 + 2 * 3
    bucket = torch.zeros(24)
    with torch.no_grad():
        one[0].weight.grad = bucket[:18].view(6, 3)
        one[0].bias.grad = bucket[18:]
        one[1].weight.grad = torch.zeros_like(one[1].weight)
    assert bucket_bytes_now(wrapper) == 2 * 3
    assert bucket_bytes_now(wrapped(one)) == 4 * 24 + 2 * 3
