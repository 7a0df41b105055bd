"""Layouts that kernels give their results, where torch's fake tensors say others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensorMode

BATCH_NORMS = {
    "_native_batch_norm_legit_functional.default": 0,
    "_native_batch_norm_legit.default": 0,
    "_native_batch_norm_legit.no_stats": 0,
    "native_batch_norm.default": 0,
    "native_batch_norm_backward.default": 1,
}
"""Ops -> the position of the input."""


@contextmanager
def true_layouts() -> Iterator[None]:
    """Within a trace, have batch norms of the CPU lay their results out as their kernels do.

    torch's fakes keep the strides of the input; the kernels write in the order of dimensions, or
    channels last. A view that a trace takes of the one would fail on the other.
    """

    def laid_out(own: Callable[..., Any], position: int) -> Callable[..., Any]:
        @functools.wraps(own)  # torch looks at its name and module
        def run(*args: Any, **kwargs: Any) -> Any:
            first, *rest = own(*args, **kwargs)
            given = args[position]
            if first is not None and given.device.type == "cpu":
                first = torch.empty_like(first, memory_format=suggest_memory_format(given))
            return (first, *rest)

        return run

    before: dict[Any, Callable[..., Any]] = {}
    for name, position in BATCH_NORMS.items():
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload)
        if op in decomposition_table:
            before[op] = decomposition_table[op]
            decomposition_table[op] = laid_out(before[op], position)
    FakeTensorMode.cache_clear()
    try:
        yield
    finally:
        decomposition_table.update(before)
        FakeTensorMode.cache_clear()
