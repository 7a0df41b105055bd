"""Messages of tensor parallelism over gloo that return when nobody else holds their buffers.

A ``DTensor`` sends them by ops of torch's own, which wait inside of a kernel: nobody hears there
that another rank has failed, and gloo's thread drops the buffers when it may (`prompt_buffers`).
While planned steps run, these ops wait in Python on the CPU; all others are torch's own. Results
are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .prompt_buffers import lent_to


class _Kernels:
    """The kernels of these ops on the CPU, which are there while somebody uses them.

    Otherwise there are torch's own. To call those from here would be wrong: they would wait with
    Python's lock, for which gloo's thread may wait in turn.
    """

    def __init__(self) -> None:
        self._num_users = 0
        self._library: Any = None

    def begin(self) -> None:
        """Put them in the place of torch's own: a matter of microseconds."""
        self._num_users += 1
        if self._library is not None:
            return
        make: Any = torch.library.Library
        self._library = make("_c10d_functional", "IMPL")
        for name, send in (
            ("all_reduce", _all_reduce),
            ("all_gather_into_tensor", _all_gather),
            ("reduce_scatter_tensor", _reduce_scatter),
        ):
            self._library.impl(name, _with_group(send), "CPU")

    def end(self) -> None:
        """Take them away after the last user."""
        self._num_users -= 1
        if not self._num_users:
            self._library._destroy()
            self._library = None


_KERNELS = _Kernels()


@contextmanager
def prompt_messages() -> Iterator[None]:
    """Let the messages that are sent in the block wait for gloo's threads, in Python."""
    _KERNELS.begin()
    try:
        yield
    finally:
        _KERNELS.end()


def _with_group(send: Callable[..., Tensor]) -> Callable[..., Tensor]:
    torch_groups: Any = dist.distributed_c10d

    def run(*arguments: Any) -> Tensor:
        *given, name = arguments
        return send(*given, torch_groups._resolve_process_group(name))

    return run


def _summed(tensor: Tensor, how: str, group: Any) -> Tensor:
    copy = tensor.clone(memory_format=torch.contiguous_format)
    options = dist.AllreduceOptions()
    options.reduceOp = getattr(dist.ReduceOp, _NAMES.get(how, how.upper()))
    lent_to(lambda lent: group.allreduce([lent], options).wait(), copy)
    return copy


_NAMES = {"sum": "SUM", "avg": "AVG", "product": "PRODUCT", "min": "MIN", "max": "MAX"}


def _all_reduce(tensor: Tensor, how: str, group: Any) -> Tensor:
    return _summed(tensor, how, group)


def _all_gather(tensor: Tensor, num_ranks: int, group: Any) -> Tensor:
    given = tensor.contiguous()
    found = tensor.new_empty((num_ranks * tensor.shape[0], *tensor.shape[1:]))
    lent_to(lambda out, one: group._allgather_base(out, one).wait(), found, given)
    return found


def _reduce_scatter(tensor: Tensor, how: str, num_ranks: int, group: Any) -> Tensor:
    # gloo reduces a copy, too, which lies in no plain sight.
    part: Tensor = _summed(tensor, how, group).chunk(num_ranks)[group.rank()]
    return part.clone()
