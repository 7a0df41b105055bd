"""Modules that are wrapped around a model to train it on many ranks."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from schedsim.errors import UnsupportedError


def inside(model: nn.Module) -> nn.Module:
    """The model that DistributedDataParallel wraps; any other module as it is."""
    if isinstance(model, DistributedDataParallel):
        wrapped: nn.Module = model.module
        return wrapped
    return model


def refuse_wrapped(model: nn.Module, *, in_place: bool) -> None:
    """Refuse wrappers whose own work would be run with every block, or around every op.

    Raises
    ------
    UnsupportedError
        `model` is one, or contains one; in place, DistributedDataParallel may be the outermost.
    """
    for module in model.modules():
        name = type(module).__name__
        if name == "FullyShardedDataParallel":
            raise UnsupportedError(
                f"{name} keeps parameters in flat tensors of its own, of which no plan is made",
                hint="shard with torch.distributed.fsdp.fully_shard (FSDP2)",
            )
        if not isinstance(module, DistributedDataParallel) or (in_place and module is model):
            continue
        raise UnsupportedError(
            f"{name} averages gradients around the step that is to be planned",
            hint="wrap what is planned: "
            f"{name}(schedsim.rematerialize(model.module, ...)), or in_place=True",
        )
