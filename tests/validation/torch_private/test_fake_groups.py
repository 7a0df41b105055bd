"""The fake backend is known once its store is."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist  # noqa: E402
from schedsim.validation.torch_private.fake_groups import fake_store  # noqa: E402


def test_a_group_of_many_with_one_process():
    """A sum over all ranks is answered at once."""
    dist.init_process_group("fake", rank=3, world_size=16, store=fake_store())
    try:
        assert (dist.get_rank(), dist.get_world_size()) == (3, 16)
        dist.all_reduce(torch.ones(2))
    finally:
        dist.destroy_process_group()
