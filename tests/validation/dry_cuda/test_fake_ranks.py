"""One rank of a fake group."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist  # noqa: E402
from schedsim.validation.dry_cuda import is_dry  # noqa: E402
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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_ddp_holds_its_buckets_beside_the_plain_step():
    """After two steps, the memory in use is the plain step's, and the buckets as large as it."""
    from schedsim.validation.measure.cuda import requested_bytes

    def held(num_ranks):
        torch.cuda.empty_cache()
        before = requested_bytes()
        plain, x = (
            nn.Sequential(*(nn.Linear(256, 256) for _ in range(4))).cuda(),
            torch.ones(8, 256),
        )
        model = plain
        if num_ranks:
            model = DistributedDataParallel(plain, device_ids=[0], bucket_cap_mb=1)
            model.register_comm_hook(None, reduces_nothing)
        for _ in range(3):
            plain.zero_grad(set_to_none=False)
            model(x.cuda()).sum().backward()
        return requested_bytes() - before, sum(4 * p.numel() for p in plain.parameters())

    plain_bytes, parameter_bytes = held(0)
    with fake_ranks(8):
        distributed_bytes, _ = held(8)
    assert plain_bytes >= 2 * parameter_bytes
    assert distributed_bytes - plain_bytes == pytest.approx(parameter_bytes, abs=64 * 1024)


@pytest.mark.gpu
@pytest.mark.skipif(not (torch.cuda.is_available() and is_dry()), reason="no dry device")
def test_symmetric_memory_is_taken_and_the_other_ranks_is_refused():
    """Its own bytes are the device's; the handle of another rank fails by name."""
    from torch.distributed import _symmetric_memory as symmetric

    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    with fake_ranks(2):
        tensor = symmetric.empty(2**22, device="cuda")
        taken = before - torch.cuda.mem_get_info()[0]
        assert 2**24 <= taken <= 2**24 + 2**22
        with pytest.raises(RuntimeError, match="cuMemExportToShareableHandle is not modelled"):
            symmetric.rendezvous(tensor, dist.group.WORLD.group_name)
