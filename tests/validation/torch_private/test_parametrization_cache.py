"""The cache of `torch.nn.utils.parametrize.cached()`."""

from __future__ import annotations

import torch
from schedsim.validation.torch_private.parametrization_cache import own_cached_weights
from torch import nn
from torch.nn.utils import parametrizations, parametrize


def test_a_step_beside_the_loop_frees_no_weight_that_it_has_cached():
    layer = parametrizations.weight_norm(nn.Linear(4, 4))
    with parametrize.cached():
        cached = layer.weight
        with own_cached_weights():
            inner = layer.weight
            assert torch.equal(inner, cached)
            layer(torch.ones(2, 4)).sum().backward()
            assert inner.grad is not None
        assert layer.weight is cached
        cached.sum().backward()  # its graph is there still
    with own_cached_weights(), parametrize.cached():
        layer(torch.ones(2, 4))
    assert layer.weight is not cached
