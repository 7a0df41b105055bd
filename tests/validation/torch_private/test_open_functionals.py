"""What modes see of functions in torch's Python code."""

from __future__ import annotations

import pytest
import torch
from schedsim.validation.torch_private.open_functionals import bodies_seen_by
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class Names(TorchFunctionMode):
    """Notes the names of the functions that it sees."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Labelled(torch.Tensor):
    """A class with functions of its own."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is functional.gaussian_nll_loss:
            return "its own"
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_mode_sees_the_body_and_afterwards_the_whole_again():
    mode, x, variance = Names(), torch.zeros(3), torch.ones(3)
    with mode, bodies_seen_by(mode):
        found = functional.gaussian_nll_loss(x, x, variance)
    assert torch.equal(found, functional.gaussian_nll_loss(x, x, variance))
    assert "gaussian_nll_loss" not in mode.seen
    assert {"any", "__bool__", "log"} <= set(mode.seen)
    mode.seen.clear()
    with mode:
        functional.gaussian_nll_loss(x, x, variance)
    assert mode.seen == ["gaussian_nll_loss"]


def test_another_mode_and_classes_of_tensors_are_given_the_whole():
    mode, other, x, variance = Names(), Names(), torch.zeros(3), torch.ones(3)
    with mode, bodies_seen_by(mode), other:
        functional.gaussian_nll_loss(x, x, variance)
    assert other.seen == ["gaussian_nll_loss"]
    with mode, bodies_seen_by(mode):
        assert functional.gaussian_nll_loss(x.as_subclass(Labelled), x, variance) == "its own"


def test_an_error_in_the_body_leaves_the_functions_as_they_were():
    mode, x, before = Names(), torch.zeros(3), functional.has_torch_function_variadic
    with pytest.raises(ValueError, match="negative"), mode, bodies_seen_by(mode):
        functional.gaussian_nll_loss(x, x, x - 1)
    assert functional.has_torch_function_variadic is before
