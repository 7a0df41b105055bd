"""Messages of tensor parallelism: some wait in Python, and some are not sent.

A ``DTensor`` sends them by ops of torch's own, which wait inside of a kernel: nobody hears there
that another rank has failed, and gloo's thread drops the buffers when it may (`prompt_buffers`).
While planned steps run, these ops wait in Python on the CPU; all others are torch's own. Results
are the same to the bit.

Where ops are measured, or schedules are compared, on one rank, nobody would answer. There each op
takes the memory that it takes else, and its result is made of this rank's own numbers, the same
whenever these are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .prompt_buffers import lent_to


class _Kernels:
    """The kernels of these ops, which are there while somebody uses them.

    Otherwise there are torch's own. To call those from here would be wrong: they would wait with
    Python's lock, for which gloo's thread may wait in turn.
    """

    def __init__(self, rows: Sequence[tuple[str, str, Callable[..., Tensor]]]) -> None:
        self._rows = rows  # (op, dispatch key, kernel)
        self._num_users = 0
        self._library: Any = None

    def begin(self) -> None:
        """Put them in the place of torch's own: a matter of microseconds."""
        self._num_users += 1
        if self._library is not None:
            return
        make: Any = torch.library.Library
        self._library = make("_c10d_functional", "IMPL")
        for name, key, kernel in self._rows:
            self._library.impl(name, kernel, key)

    def end(self) -> None:
        """Take them away after the last user."""
        self._num_users -= 1
        if not self._num_users:
            self._library._destroy()
            self._library = None


@contextmanager
def prompt_messages() -> Iterator[None]:
    """Let the messages that are sent in the block wait for gloo's threads, in Python."""
    _PROMPT.begin()
    try:
        yield
    finally:
        _PROMPT.end()


def prompt_from_now_on() -> Callable[[], None]:
    """Let all messages wait so, until the function is called that is returned."""
    _PROMPT.begin()
    begun = [True]

    def end() -> None:
        if begun:
            begun.clear()
            _PROMPT.end()

    return end


@contextmanager
def silent_messages() -> Iterator[None]:
    """Let no message be sent in the block: each rank's own numbers stand for those of others."""
    global _num_silent
    if not dist.is_available():
        yield
        return
    _num_silent += 1
    _PROMPT.begin()
    _SILENT.begin()
    try:
        yield
    finally:
        _SILENT.end()
        _PROMPT.end()
        _num_silent -= 1


def is_silent(target: Any) -> bool:
    """Whether an op that communicates is one of those that `silent_messages` does not send."""
    name = str(getattr(target, "_schema", "")).partition("(")[0]
    return name in {f"_c10d_functional::{it}" for it in (*_SILENT_SENDS, "wait_tensor")}


_num_silent = 0


def _sending(name: str, send: Callable[..., Tensor]) -> Callable[..., Tensor]:
    torch_groups: Any = dist.distributed_c10d

    def run(*arguments: Any) -> Tensor:
        if _num_silent:
            return _SILENT_SENDS[name](*arguments)
        *given, group = arguments
        return send(*given, torch_groups._resolve_process_group(group))

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


def _silent_all_reduce(tensor: Tensor, _how: str, _group: str) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def _silent_all_gather(tensor: Tensor, num_ranks: int, _group: str) -> Tensor:
    given = tensor.contiguous()
    found = tensor.new_empty((num_ranks * tensor.shape[0], *tensor.shape[1:]))
    for part in found.chunk(num_ranks):
        part.copy_(given)
    return found


def _silent_reduce_scatter(tensor: Tensor, _how: str, num_ranks: int, _group: str) -> Tensor:
    if tensor.is_cuda:
        return tensor.contiguous().chunk(num_ranks)[0].clone()
    part = tensor.clone(memory_format=torch.contiguous_format).chunk(num_ranks)[0]
    return part.clone()


def _silent_all_to_all(
    tensor: Tensor, out_sizes: Sequence[int], _in_sizes: Sequence[int], _group: str
) -> Tensor:
    given = tensor.contiguous()
    found = given.new_zeros((sum(out_sizes), *given.shape[1:]))
    num = min(len(found), len(given))
    found[:num].copy_(given[:num])
    return found


def _silent_broadcast(tensor: Tensor, _source: int, _group: str) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


_SILENT_SENDS: dict[str, Callable[..., Tensor]] = {
    "all_reduce": _silent_all_reduce,
    "all_gather_into_tensor": _silent_all_gather,
    "reduce_scatter_tensor": _silent_reduce_scatter,
    "all_to_all_single": _silent_all_to_all,
    "broadcast": _silent_broadcast,
}
_SENDS: dict[str, Callable[..., Tensor]] = {
    "all_reduce": _all_reduce,
    "all_gather_into_tensor": _all_gather,
    "reduce_scatter_tensor": _reduce_scatter,
}
_PROMPT = _Kernels([(name, "CPU", _sending(name, send)) for name, send in _SENDS.items()])
_SILENT = _Kernels(
    [(name, "CPU", send) for name, send in _SILENT_SENDS.items() if name not in _SENDS]
    + [(name, "CUDA", send) for name, send in _SILENT_SENDS.items()]
)
