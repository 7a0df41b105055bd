"""Collectives over gloo that return when nobody else holds their buffers any more.

gloo runs a collective in a thread of its own, which drops the buffers at some time after it has
woken who waits. Until then they take memory beside the next ones; and a release by that thread is
in no record of the CPU's allocator. So the peak of a step was up to a gathered block or a reduced
gradient higher whenever the machine was busy. These collectives wait for the thread, too: mostly
well under a millisecond, and the results are the same to the bit. They are those of FSDP2: gathers,
reductions and the averages over replicas.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .storage_refs import num_holders

LONGEST_S = 10.0
"""Seconds after which the buffers are given up on: somebody else holds them, for longer."""


def release_promptly(group: Any) -> None:
    """Let a parameter group of FSDP2 wait for gloo's threads, if it gathers over gloo."""
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives

    if not _is_over_gloo(group):
        return
    if type(group._all_gather_comm) is collectives.DefaultAllGather:
        group._all_gather_comm = _PromptAllGather(group._all_gather_comm)
    if type(group._reduce_scatter_comm) is collectives.DefaultReduceScatter:
        group._reduce_scatter_comm = _PromptReduceScatter(group._reduce_scatter_comm)
    replicas = getattr(group.mesh_info, "replicate_process_group", None)
    if replicas is not None and not isinstance(replicas, PromptReplicas):
        group.mesh_info.replicate_process_group = PromptReplicas(replicas)


def release_as_before(group: Any) -> None:
    """End what `release_promptly` began."""
    for name in ("_all_gather_comm", "_reduce_scatter_comm"):
        comm = getattr(group, name)
        if isinstance(comm, PromptCollective):
            setattr(group, name, comm.original)
    replicas = getattr(group.mesh_info, "replicate_process_group", None)
    if isinstance(replicas, PromptReplicas):
        group.mesh_info.replicate_process_group = replicas.original


def _is_over_gloo(group: Any) -> bool:
    processes = getattr(group.mesh_info, "shard_process_group", None)
    if group.device.type != "cpu" or processes is None or not dist.is_gloo_available():
        return False
    return isinstance(processes._get_backend(torch.device("cpu")), dist.ProcessGroupGloo)


class PromptReplicas:
    """The group of processes over which replicas are averaged, whose averages wait.

    FSDP2 calls `dist.all_reduce` on it, for which no other function can be given.
    """

    def __init__(self, original: Any) -> None:
        self.original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)

    def allreduce(self, tensors: list[Tensor], options: Any) -> Any:
        """No work is left to wait for, unless the caller waits at another time."""
        if getattr(options, "asyncOp", False):
            return self.original.allreduce(tensors, options)
        lent_to(lambda *lent: self.original.allreduce(list(lent), options).wait(), *tensors)
        return None


class PromptCollective:
    """A collective of FSDP2, around the one that was there before; `words` name it."""

    words = ""

    def __init__(self, original: Any) -> None:
        self.original = original
        self.allocate: Callable[..., Tensor] = original.allocate


class _PromptAllGather(PromptCollective):
    """FSDP2's all-gather, which waits until the output is held by the caller alone."""

    words = "all-gather"

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
    ) -> Any:
        if async_op:  # the caller waits, at another time
            return self.original(output_tensor, input_tensor, group, async_op)
        lent_to(lambda out, given: self.original(out, given, group), output_tensor, input_tensor)
        return None


class _PromptReduceScatter(PromptCollective):
    """FSDP2's reduce-scatter, by the all-reduce of a copy that gloo makes of it, in plain sight."""

    words = "reduce-scatter"

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        if async_op:
            return self.original(output_tensor, input_tensor, group, op, async_op)
        copy = input_tensor.clone()
        lent_to(lambda one: dist.all_reduce(one, op=op, group=group), copy)
        output_tensor.copy_(copy.chunk(group.size())[group.rank()])
        return None


def lent_to(collective: Callable[..., object], *tensors: Tensor) -> None:
    """Call ``collective(*tensors)``, which waits for its end; return when it holds them no more.

    It gets other tensors of the same memory. Of a tensor that Python knows, the count of references
    falls before the thread has given up the last one, which Python's lock may delay.
    """
    counts = [num_holders(tensor) for tensor in tensors]
    collective(*[tensor.detach() for tensor in tensors])
    deadline, turns = time.monotonic() + LONGEST_S, 0
    while any(num_holders(t) > count for t, count in zip(tensors, counts, strict=True)):
        turns += 1
        time.sleep(0 if turns < 100 else 1e-4)  # gives up the core, and Python's lock
        if time.monotonic() > deadline:
            return
