"""Bytes that PyTorch's attention over context-parallel ranks moves beside attention itself.

One rank of a fake process group traces ``_templated_ring_attention`` and its backward, with an op
in the place of attention that writes what attention writes. Inductor schedules the graph, and each
kernel's reads and writes are added up; nothing is run. Sizes are those of the output of a rank in
16 bits. What makes the keys and values that are put together is left out, as the layer's own code
writes them. `schedsim/clusters/context_ring.py` takes its bytes of compiled code from here.

    python benchmarks/ring_traffic.py --ranks 2 4 8
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._inductor import compile as compile_graph
from torch._inductor import config, scheduler
from torch.distributed.tensor.experimental._context_parallel import _attention as ring
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.distributed.fake_pg import FakeStore

from schedsim.clusters.context_ring import ContextRing

HEADS, TOKENS, WIDTH = 32, 1024, 128


def _as_attention_writes(one: Tensor) -> Tensor:
    """A tensor of heads whose tokens come first in memory."""
    batch, heads, tokens, width = one.shape
    return one.new_empty(batch, tokens, heads, width).transpose(1, 2)


@torch.library.custom_op("ring_traffic::attention", mutates_args=())
def attention(query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> tuple[Tensor, Tensor]:
    """Stands for fused attention: its output and the sums of its rows."""
    raise NotImplementedError


@attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> tuple[Tensor, Tensor]:
    return _as_attention_writes(query), query.new_empty(query.shape[:3], dtype=torch.float32)


@torch.library.custom_op("ring_traffic::attention_backward", mutates_args=())
def attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    is_causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Stands for the backward: gradients of queries, keys and values."""
    raise NotImplementedError


@attention_backward.register_fake
def _(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    is_causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(map(_as_attention_writes, (query, key, value)))  # type: ignore[return-value]


class _ScheduledError(Exception):
    """Ends the compilation once the kernels are known."""


def moved_bytes(function: Any, *tensors: Tensor) -> int:
    """Bytes that the kernels of compiled `function` read and write, without ops of libraries."""
    found: list[int] = []

    def count(self: scheduler.Scheduler) -> None:
        for node in self.nodes:
            if not isinstance(node, scheduler.ExternKernelSchedulerNode):
                found.append(int(node.get_read_write_buffers_sizes()))
        raise _ScheduledError

    before, scheduler.Scheduler.codegen = scheduler.Scheduler.codegen, count
    try:
        with torch.no_grad(), config.patch(force_disable_caches=True):
            graph = make_fx(torch.func.functionalize(function), tracing_mode="fake")(*tensors)
            compile_graph(graph, list(tensors))
    except Exception as error:
        if _ScheduledError.__name__ not in repr(error):
            raise
    finally:
        scheduler.Scheduler.codegen = before
    return sum(found)


def traffic(ranks: int, rank: int) -> tuple[float, float]:
    """Bytes that one rank moves forward and backward, for each byte of its output."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    group = dist.group.WORLD

    def made() -> Tensor:
        return torch.zeros(1, TOKENS, HEADS, WIDTH, dtype=torch.bfloat16).transpose(1, 2)

    query, key, value, out, gradient = (made() for _ in range(5))
    sums = torch.zeros(1, HEADS, TOKENS)

    def forward(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return ring._templated_ring_attention(
            group, 2, attention, query, key * 2, value * 2, is_causal=True
        )

    def backward(gradient: Tensor, *saved: Tensor) -> Any:
        return ring._templated_ring_attention_backward(
            group, 2, attention_backward, gradient, "grad_out", *saved, is_causal=True
        )

    part = query.numel() * query.element_size()
    laid_out = 4  # keys and values, read and written
    forth = moved_bytes(forward, query, key, value) / part - laid_out
    back = moved_bytes(backward, gradient, query, key, value, out, sums) / part - laid_out
    return forth, back


def main() -> None:
    """Print a row for each number of ranks: the first rank and the last, beside the formula."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rank", type=int, help="of a single number of ranks: this one alone")
    given = parser.parse_args()
    if given.rank is not None:
        print(*(f"{one:.2f}" for one in traffic(given.ranks[0], given.rank)))
        return
    print(f"torch {torch.__version__}: bytes a byte of output, forward and backward")
    for ranks in given.ranks:
        words = []
        for rank in (0, ranks - 1):  # a process has one group
            call = [sys.executable, __file__, "--ranks", str(ranks), "--rank", str(rank)]
            out = subprocess.run(call, capture_output=True, text=True, check=True).stdout
            words.append(f"rank {rank} {' '.join(out.split())}")
        one = ContextRing(ranks, ranks, 1000, 2000, 1000, compiled=True)
        ours = f"{one.forward_bytes / 1000:.2f} {one.backward_bytes / 1000:.2f}"
        print(f"{ranks} ranks: {'; '.join(words)}; most, by the formula {ours}", flush=True)


if __name__ == "__main__":
    main()
