"""Wrappers around a model: what is planned inside of them, and what is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.ranks.wrappers import inside, refuse_wrapped  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import schedsim  # noqa: E402


def wrapped(model: nn.Module) -> nn.Module:
    """A wrapper without the process group that a real one takes."""
    wrapper = DistributedDataParallel.__new__(DistributedDataParallel)
    nn.Module.__init__(wrapper)
    wrapper.module, wrapper.static_graph = model, False
    return wrapper


class FullyShardedDataParallel(nn.Module):
    """Has the name of torch's."""


def test_the_model_inside():
    """Of a wrapper; others are as they are."""
    model = nn.Linear(2, 2)
    assert inside(model) is model
    assert inside(wrapped(model)) is model


def test_a_wrapper_is_planned_in_place_alone_and_outermost():
    """Inside of another module, its averaging would be part of that module's step."""
    model = nn.Linear(2, 2)
    refuse_wrapped(model, in_place=False)
    refuse_wrapped(wrapped(model), in_place=True)
    for refused, in_place in ((wrapped(model), False), (nn.Sequential(wrapped(model)), True)):
        with pytest.raises(schedsim.UnsupportedError, match="averages gradients") as error:
            refuse_wrapped(refused, in_place=in_place)
        assert "rematerialize(model.module" in error.value.hint


def test_flat_sharding_is_refused():
    """At any depth, with the name of what does work."""
    for in_place in (False, True):
        with pytest.raises(schedsim.UnsupportedError, match="flat tensors") as error:
            refuse_wrapped(nn.Sequential(FullyShardedDataParallel()), in_place=in_place)
        assert "fully_shard" in error.value.hint
