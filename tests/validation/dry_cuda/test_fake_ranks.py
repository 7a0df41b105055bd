"""One rank of a fake group."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist  # noqa: E402
from schedsim.validation.dry_cuda.fake_ranks import fake_ranks, reduces_nothing  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


def test_a_step_of_ddp_has_its_own_gradients():
    """The hook hands every bucket back; afterwards there is no group."""
    plain, x = nn.Linear(4, 3), torch.randn(5, 4)
    plain(x).sum().backward()
    wanted = [p.grad.clone() for p in plain.parameters()]
    plain.zero_grad()
    with fake_ranks(8):
        assert dist.get_world_size() == 8
        model = DistributedDataParallel(plain)
        model.register_comm_hook(None, reduces_nothing)
        model(x).sum().backward()
    assert not dist.is_initialized()
    assert all(torch.equal(p.grad, w) for p, w in zip(plain.parameters(), wanted, strict=True))
