"""The groups that torch.distributed has, and the wrapper whose step runs now."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def default_group() -> Any:
    """The group of all ranks, an object that changes when the process group is made anew."""
    return dist.distributed_c10d._get_default_group()


def default_store() -> Any:
    """The store by which the ranks met."""
    return dist.distributed_c10d._get_default_store()


def active_wrapper() -> Any:
    """The DistributedDataParallel whose forward runs now; ``None`` outside of one."""
    return DistributedDataParallel._active_ddp_module
