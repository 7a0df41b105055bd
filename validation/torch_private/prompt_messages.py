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

from .prompt_buffers import is_gloo, lent_to

_OPS: Any = torch.ops._c10d_functional


class _Kernels:
    """The kernels of these ops on the CPU, once they are needed."""

    def __init__(self) -> None:
        self.num_users = 0
        self._library: Any = None

    def put(self) -> None:
        """Replace torch's kernels, by ones that call those unless somebody uses these."""
        if self._library is not None or not hasattr(torch.library, "get_kernel"):
            return
        self._library = torch.library.Library("_c10d_functional", "IMPL")
        for op, prompt in (
            (_OPS.all_reduce.default, _all_reduce),
            (_OPS.all_gather_into_tensor.default, _all_gather),
            (_OPS.reduce_scatter_tensor.default, _reduce_scatter),
        ):
            kernel = torch.library.get_kernel(op, "CPU")
            name = op.name().removeprefix("_c10d_functional::")
            self._library.impl(name, self._choosing(kernel, prompt), "CPU", with_keyset=True)

    def _choosing(self, kernel: Any, prompt: Callable[..., Tensor]) -> Callable[..., Any]:
        def run(keys: Any, *arguments: Any) -> Any:
            *given, group_name = arguments
            if self.num_users:
                group = dist.distributed_c10d._resolve_process_group(group_name)
                if is_gloo(group):
                    return prompt(*given, group)
            return kernel.call_boxed(keys, *arguments)

        return run


_KERNELS = _Kernels()


@contextmanager
def prompt_messages() -> Iterator[None]:
    """Let the messages that are sent in the block wait for gloo's threads, in Python."""
    _KERNELS.put()
    _KERNELS.num_users += 1
    try:
        yield
    finally:
        _KERNELS.num_users -= 1


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
    return _summed(tensor, how, group).chunk(num_ranks)[group.rank()].clone()
