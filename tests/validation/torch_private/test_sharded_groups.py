"""FSDP2's own records, in a group of one rank."""

from __future__ import annotations

import torch
from rank_processes import run_ranks
from schedsim.validation.torch_private import sharded_groups as private
from schedsim.validation.torch_private.storage_refs import share_of
from torch import nn


def _recorded(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1,))
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(3)))
    fully_shard(model[0], mesh=mesh)
    fully_shard([model[1], model[2]], mesh=mesh)
    assert private.is_sharded(model[0])
    assert not private.is_sharded(model)
    assert not private.is_grouped(model[0])
    assert private.is_grouped(model[1])
    assert private.sharded_with(model[1]) == (model[1], model[2])
    assert len(list(private.states(model))) >= 2
    state = private.state_of(model[0])
    assert not private.prefetches(state)
    model[0].set_modules_to_forward_prefetch([model[1]])
    assert private.prefetches(state)
    assert private.reduces(state)
    model[0].set_requires_gradient_sync(False)
    assert not private.reduces(state)
    model[0].set_requires_gradient_sync(True)
    model[0].set_modules_to_forward_prefetch([])
    weight = model[0].weight
    assert type(share_of(weight)) is torch.Tensor
    model[0](torch.ones(1, 4)).sum()
    private.forget_order(state)
    assert private.gathered_bytes(state) == 64
    model[0].unshard()
    freed = []
    private.watch_gathered(state, freed.append)
    model[0].reshard()
    model[0].unshard()
    model[0].reshard()
    assert freed == [64]  # what was there when the watch began, once
    model[0].unshard()
    private.watch_gathered(state, freed.append)
    private.unwatch_gathered(state)
    model[0].reshard()
    assert freed == [64]
    assert not private.leaves_gathered(state)
    model[0].set_reshard_after_backward(False)
    assert private.leaves_gathered(state)
    assert private.reduces_over_replicas(state)
    model[0].set_requires_all_reduce(False)
    assert not private.reduces_over_replicas(state)
    assert not any(group._post_forward_indices for group in private.groups(state))


def test_states_groups_and_bytes_of_sharded_modules():
    """What is gathered, whether it is gathered ahead, and which modules go together."""
    run_ranks(_recorded, 1)
