"""One rank of a group that is not there: PyTorch's ``fake`` backend, which sends nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from ..torch_private.fake_groups import fake_store

# No `annotations` from __future__: DistributedDataParallel reads those of its hooks as classes.


@contextmanager
def fake_ranks(num_ranks: int) -> Iterator[None]:
    """A default process group of `num_ranks`, of which this process is the first.

    FSDP2 and tensor parallelism run on it as they are; DistributedDataParallel needs
    `reduces_nothing`. The group is taken down at the end of the block.
    """
    dist.init_process_group("fake", rank=0, world_size=num_ranks, store=fake_store())
    try:
        yield
    finally:
        dist.destroy_process_group()


def reduces_nothing(
    state: Any,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # it is made in C++
) -> Future[torch.Tensor]:
    """A communication hook that leaves the bucket as it is.

    Use it as ``model.register_comm_hook(None, reduces_nothing)``: DistributedDataParallel expects a
    tensor, and the fake backend's own answer is none.
    """
    done: Future[torch.Tensor] = Future()
    done.set_result(bucket.buffer())
    return done
