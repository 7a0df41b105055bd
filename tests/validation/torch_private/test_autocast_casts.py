"""What stands for a block of autocast."""

from __future__ import annotations

import torch
from schedsim.validation.torch_private.autocast_casts import remembered_cast


def test_each_block_that_remembers_casts_is_another_one():
    """One block is the same throughout, without gradients too; nothing stands for no block."""
    with torch.autocast("cpu", torch.bfloat16):
        first = remembered_cast("cpu")
        with torch.no_grad():
            assert remembered_cast("cpu") is first
        assert first is not None
    with torch.autocast("cpu", torch.bfloat16):
        assert remembered_cast("cpu") is not first
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        assert remembered_cast("cpu") is None
    assert remembered_cast("cpu") is None


def test_a_block_is_one_as_long_as_a_weight_is_cast_once_in_it():
    """So autograd casts: its nodes are those of the block."""
    weight = torch.ones(2, 2, requires_grad=True)

    def node():
        return (torch.ones(2, 2) @ weight).grad_fn.next_functions[1][0]

    with torch.autocast("cpu", torch.bfloat16):
        assert node() is node()
