"""Which processes take part in the steps of a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..torch_private.sharded_groups import shares as private_shares
from ..torch_private.sharded_groups import states
from .ranks import ALONE, Ranks


def ranks_of(model: nn.Module) -> Ranks:
    """The ranks that plan a step of `model` together; `ALONE` if there is one process.

    If parameters are sharded, they are the ranks of the parameters' meshes: running any part of the
    model is then a collective of all of them. Otherwise they are all ranks of the default group:
    each runs its part of a step by itself, so that the ranks need not follow one plan.
    """
    members = _members(model)
    if not members:
        return ALONE
    return Ranks.among(members, bound=communicates(model))


def has_ranks() -> bool:
    """Whether this process is one of a group, be it of one."""
    return dist.is_available() and dist.is_initialized()


def communicates(model: nn.Module) -> bool:
    """Whether running `model` is a collective of all ranks, of which there are several."""
    if not _members(model):
        return False
    return bool(mesh_ranks(model)) or any(map(_communicates, model.modules()))


def _members(model: nn.Module) -> tuple[int, ...]:
    """The ranks that plan together with this one; none where there are no others."""
    if not has_ranks() or _is_fake():
        return ()
    members = mesh_ranks(model) or set(range(dist.get_world_size()))
    return tuple(sorted(members)) if len(members) > 1 and dist.get_rank() in members else ()


def mesh_ranks(model: nn.Module) -> set[int]:
    """The ranks of the meshes that parameters of `model` are sharded or replicated over."""
    shares = (share for state in states(model) for share in private_shares(state))
    return mesh_ranks_of((*model.parameters(), *shares))  # some parameters may be gathered


def mesh_ranks_of(tensors: Iterable[Any]) -> set[int]:
    """The ranks of the meshes that some of `tensors` are sharded or replicated over."""
    found: set[int] = set()
    for tensor in tensors:
        mesh: Any = getattr(tensor, "device_mesh", None)
        if mesh is not None:
            found.update(mesh.mesh.flatten().tolist())
    return found


def ranks_among(members: set[int]) -> Ranks:
    """Those of `members` that run graphs together with this rank; `ALONE` if there are none."""
    if not has_ranks() or _is_fake() or len(members) < 2 or dist.get_rank() not in members:
        return ALONE
    return Ranks.among(tuple(sorted(members)), bound=True)


def is_spread(model: nn.Module) -> bool:
    """Whether some parameters of `model` are spread over ranks at present."""
    return any(getattr(p, "device_mesh", None) is not None for p in model.parameters())


def _communicates(module: nn.Module) -> bool:
    """Whether `module` communicates in its forward, its parameters being whole."""
    if isinstance(module, nn.SyncBatchNorm | DistributedDataParallel):
        return True
    return type(module).__name__ == "FullyShardedDataParallel"


def _is_fake() -> bool:
    """Whether the other ranks are emulated, so that none of them will answer."""
    return bool(dist.get_backend() == "fake")
