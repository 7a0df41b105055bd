"""Layouts and types that kernels give their results, where torch's fake tensors say others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_impls import op_implementations_dict
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import get_proxy_mode

BATCH_NORMS = {
    "_native_batch_norm_legit_functional.default": 0,
    "_native_batch_norm_legit.default": 0,
    "_native_batch_norm_legit.no_stats": 0,
    "native_batch_norm.default": 0,
    "native_batch_norm_backward.default": 1,
}
"""Ops -> the position of the input."""

STATISTICS = {"native_layer_norm.default": 2}
"""Ops that return mean and deviation -> the position of the weight, before that of the bias."""

PRODUCTS = {
    "hardsigmoid_backward.default": 0,
    "hardswish_backward.default": 0,
    "hardtanh_backward.default": 0,
    "logit_backward.default": 0,
    "native_dropout_backward.default": 0,
    "softplus_backward.default": 0,
}
"""Ops -> the position of the first of two factors, in whose order the product is written."""

ORDERED = {
    "_log_softmax_backward_data.default": 0,
    "huber_loss_backward.default": 1,
    "mse_loss_backward.default": 1,
    "smooth_l1_loss_backward.default": 1,
}
"""Ops -> the position of an input; their result is written in the order of dimensions."""


@contextmanager
def true_layouts() -> Iterator[None]:
    """Within a trace, have norms of the CPU make their results as their kernels do.

    torch's fakes of batch norms keep the strides of the input; the kernels write in the order of
    dimensions, or channels last. A view that a trace takes of the one would fail on the other.
    Fakes of layer norms give mean and deviation the type of the input; the kernels give
    them that of the weight, which autocast leaves in float32, and their backward asks for it.
    Fakes of the backwards of dropout and of activations write in the order of dimensions or of the
    input, the kernels as products with the gradient do; those of losses do the opposite.
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

    def typed(own: Callable[..., Any], position: int) -> Callable[..., Any]:
        @functools.wraps(own)
        def run(*args: Any, **kwargs: Any) -> Any:
            first, mean, deviation = own(*args, **kwargs)
            held = [t for t in args[position : position + 2] if isinstance(t, torch.Tensor)]
            if held and first.device.type == "cpu":
                mean, deviation = mean.to(held[0].dtype), deviation.to(held[0].dtype)
            return first, mean, deviation

        return run

    def as_product(own: Callable[..., Any], position: int) -> Callable[..., Any]:
        @functools.wraps(own)
        def run(*args: Any, **kwargs: Any) -> Any:
            one, other = args[position : position + 2]
            if one.device.type == "cpu":
                return torch.mul(one, other)
            return own(*args, **kwargs)

        return run

    def ordered(own: Callable[..., Any], position: int) -> Callable[..., Any]:
        @functools.wraps(own)
        def run(*args: Any, **kwargs: Any) -> Any:
            found = own(*args, **kwargs)
            if args[position].device.type == "cpu":
                found = torch.empty_like(found, memory_format=torch.contiguous_format)
            return found

        return run

    is_over = False

    def for_fakes(own: Callable[..., Any], of_kernel: Callable[..., Any]) -> Callable[..., Any]:
        """Inductor copies this table when it is imported, and computes with what it finds."""

        @functools.wraps(own)
        def run(*args: Any, **kwargs: Any) -> Any:
            computes = is_over or get_proxy_mode() is not None
            return (own if computes else of_kernel)(*args, **kwargs)

        return run

    before: list[tuple[dict[Any, Callable[..., Any]], Any, Callable[..., Any]]] = []
    for rule, ops in (
        (laid_out, BATCH_NORMS),
        (typed, STATISTICS),
        (as_product, PRODUCTS),
        (ordered, ORDERED),
    ):
        for name, position in ops.items():
            packet, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, packet), overload)
            # Functions of fake tensors alone take the mode and the op before its arguments.
            for table, first in ((decomposition_table, 0), (op_implementations_dict, 2)):
                if op in table:
                    before.append((table, op, table[op]))
                    table[op] = for_fakes(table[op], rule(table[op], first + position))
    FakeTensorMode.cache_clear()
    try:
        yield
    finally:
        is_over = True
        for table, op, own in before:
            table[op] = own
        FakeTensorMode.cache_clear()
