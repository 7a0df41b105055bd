"""Tensors that circles of Python objects hold are found, named and told of."""

from __future__ import annotations

import gc

import pytest
import schedsim.validation.block_level.chain_capture as capture
import torch
from schedsim.validation.block_level.held_in_circles import watched_circles
from schedsim.validation.measure.meters import no_collection
from torch import distributions, nn


class Node:
    """An object that refers to itself, and to a tensor."""

    def __init__(self, held: torch.Tensor) -> None:
        self.own, self.held = self, held


class Policy(nn.Module):
    """Three equal blocks, and a Gaussian squashed by a transform that keeps its last result."""

    def __init__(self, cache_size: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))
        self.cache_size = cache_size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        squash = distributions.transforms.TanhTransform(cache_size=self.cache_size)
        policy = distributions.TransformedDistribution(distributions.Normal(x, 1.0), [squash])
        return policy.log_prob(policy.rsample()).mean()


def test_a_tensor_in_a_circle_is_counted_and_its_object_named():
    with no_collection(), watched_circles(()) as found:
        Node(torch.zeros(100))
    assert (found.held_bytes, found.types) == (400, ("Node",))
    assert found.line is not None
    assert found.line.startswith("Node of a forward refer to each other and hold 400 B ")


def test_nothing_is_told_of_tensors_that_go_or_stay_or_count_otherwise():
    weight = torch.zeros(100)
    with no_collection(), watched_circles([weight]) as found:
        kept = Node(torch.zeros(100))
        Node(weight[:50])
        torch.zeros(100)
    assert found.line is None
    assert kept.held.sum() == 0


def test_the_collector_is_left_as_it_was():
    debug, garbage = gc.get_debug(), list(gc.garbage)
    with no_collection(), watched_circles(()):
        Node(torch.zeros(100))
    assert (gc.get_debug(), gc.garbage, gc.isenabled()) == (debug, garbage, True)


@pytest.mark.parametrize("cache_size", [1, 0])
def test_a_forward_that_leaves_circles_is_told_of(cache_size, recwarn):
    """Without a cache, the transform holds no tensor."""
    captured = capture.capture_chain(Policy(cache_size), torch.randn(16, 8), rounds=0)
    told = [str(one.message) for one in recwarn if "refer to each other" in str(one.message)]
    noted = [note for note in captured.notes if "refer to each other" in note]
    assert told == noted
    assert len(told) == cache_size
    for line in told:
        assert "TanhTransform" in line
        assert "hold 1.02 kB (1.00 KiB) " in line  # its input and its result, 16 x 8 numbers each
