"""Results of messages that tensor parallelism waits for at their first use."""

from __future__ import annotations

import torch
from torch import Tensor

from .storage_refs import share_of, spread_as


def arrived(tensor: Tensor) -> Tensor:
    """`tensor` once its message has come, without the wrapper that waits for it.

    The wrapper has no memory of its own: views of its content could not be found by their storage.
    """
    if type(tensor) is Tensor or not torch.distributed.is_available():
        return tensor
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    share = share_of(tensor)
    if not isinstance(share, AsyncCollectiveTensor):
        return tensor
    content: Tensor = share.trigger_wait()  # type: ignore[no-untyped-call]  # torch's
    return content if share is tensor else spread_as(tensor)(content)
