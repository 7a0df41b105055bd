"""Generators that a step holds: told when they move on, and put back."""

from __future__ import annotations

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.guards.generator_places import (  # noqa: E402
    generator_place,
    torch_generator_place,
)
from schedsim.validation.guards.state import StateSnapshot  # noqa: E402
from torch import nn  # noqa: E402


def test_generators_that_moved_on_are_told_and_put_back():
    """They are no changes: others may draw from them between steps."""
    model = nn.Linear(1, 1)
    model.draw = random.Random(3)
    model.numpy, model.legacy = np.random.default_rng(1), np.random.RandomState(2)
    before = StateSnapshot({"model": model})
    assert before.draws() == []
    first = model.draw.random(), model.numpy.random(), model.legacy.rand()
    assert before.draws() == ["model.draw", "model.numpy", "model.legacy"]
    assert before.change() is None
    before.restore()
    assert (model.draw.random(), model.numpy.random(), model.legacy.rand()) == first


def test_a_generator_of_torch_is_put_back():
    generator = torch.Generator().manual_seed(1)
    place = torch_generator_place("model.noise", generator)
    first = torch.rand(3, generator=generator)
    assert [change.path for change in place.changes()] == ["model.noise"]
    place.restore()
    assert torch.equal(torch.rand(3, generator=generator), first)


def test_what_draws_no_numbers_is_no_generator():
    assert generator_place("model.numbers", [1, 2]) is None
