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

_CPU, _CUDA, _BOTH = ("cpu",), ("cuda",), ("cpu", "cuda")

IN_FORMAT = {
    "_batch_norm_with_update.default": (0, _CPU),  # CUDA's forward keeps the strides, as the fakes
    "_native_batch_norm_legit.default": (0, _CPU),
    "_native_batch_norm_legit.no_stats": (0, _CPU),
    "_native_batch_norm_legit_functional.default": (0, _CPU),
    "native_batch_norm.default": (0, _CPU),
    "batch_norm_backward.default": (1, _BOTH),
    "native_batch_norm_backward.default": (1, _BOTH),
    "channel_shuffle.default": (0, _CPU),
    "max_unpool2d.default": (0, _CPU),
    "native_dropout_backward.default": (0, _CUDA),
    "replication_pad2d_backward.default": (1, _CPU),
    "upsample_bilinear2d.default": (0, _BOTH),
    "upsample_trilinear3d.default": (0, _BOTH),
}
"""Ops -> the position of an input, and devices.

The first result is in the order of dimensions, or channels-last where the input is.
"""

STATISTICS = {"native_layer_norm.default": 2}
"""Ops that return mean and deviation -> the position of the weight, before that of the bias."""

LIKE = {"binary_cross_entropy_backward.default": (1, _BOTH)}
"""Ops -> the position of an input, and devices; the result lies as that input does."""

IN_EVALUATION = {"native_batch_norm_backward.default": (7, _CUDA)}
"""Ops -> the position of a flag, and devices; without it the first result is in order."""

PRODUCTS = {
    "copysign.Tensor": (0, _BOTH),
    "div.Tensor_mode": (0, _BOTH),
    "floor_divide.default": (0, _BOTH),
    "hardsigmoid_backward.default": (0, _BOTH),
    "hardswish_backward.default": (0, _BOTH),
    "hardtanh_backward.default": (0, _BOTH),
    "heaviside.default": (0, _BOTH),
    "logaddexp.default": (0, _BOTH),
    "logaddexp2.default": (0, _BOTH),
    "logical_and.default": (0, _BOTH),
    "logical_or.default": (0, _BOTH),
    "logical_xor.default": (0, _BOTH),
    "logit_backward.default": (0, _BOTH),
    "native_dropout_backward.default": (0, _CPU),
    "softplus_backward.default": (0, _BOTH),
    "special_xlog1py.default": (0, _BOTH),
    "xlogy.Tensor": (0, _BOTH),
}
"""Ops -> the position of the first of two operands, and devices; results lie as a product's."""

ORDERED = {
    "_log_softmax_backward_data.default": (0, _BOTH),
    "glu_backward.default": (1, _BOTH),
    "huber_loss_backward.default": (1, _BOTH),
    "log_sigmoid_forward.default": (0, _CPU),
    "mse_loss_backward.default": (1, _BOTH),
    "nll_loss2d_forward.default": (0, _BOTH),
    "normal.Tensor_Tensor": (0, _BOTH),
    "pow.Scalar": (1, _BOTH),
    "smooth_l1_loss_backward.default": (1, _BOTH),
}
"""Ops -> the position of an input, and devices; results are written in the order of dimensions."""


@contextmanager
def true_layouts() -> Iterator[None]:
    """Within a trace, have ops make their results as their kernels on the CPU and CUDA do.

    torch's fakes of batch norms keep the strides of the input; the kernels write in the order of
    dimensions, or channels last. A view that a trace takes of the one would fail on the other.
    Fakes of layer norms give mean and deviation the type of the input; the CPU's kernels give
    them that of the weight, which autocast leaves in float32, and their backward asks for it.
    Fakes of the backwards of dropout and of activations, and of some ops of two operands, write in
    the order of dimensions or of one operand, the kernels as products do; those of losses do the
    opposite.
    """

    def in_order(found: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(found, memory_format=torch.contiguous_format)

    def laid_out(own: Callable[..., Any], position: int, *devices: str) -> Callable[..., Any]:
        @functools.wraps(own)  # torch looks at its name and module
        def run(*args: Any, **kwargs: Any) -> Any:
            found = own(*args, **kwargs)
            given = args[position]
            if given.device.type not in devices:
                return found
            memory_format = suggest_memory_format(given)
            if isinstance(found, torch.Tensor):
                return torch.empty_like(found, memory_format=memory_format)
            first, *rest = found
            if first is not None:
                first = torch.empty_like(first, memory_format=memory_format)
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

    def like(own: Callable[..., Any], position: int, *devices: str) -> Callable[..., Any]:
        @functools.wraps(own)
        def run(*args: Any, **kwargs: Any) -> Any:
            found, given = own(*args, **kwargs), args[position]
            if given.device.type not in devices:
                return found
            return torch.empty_like(given, dtype=found.dtype)

        return run

    def evaluated(own: Callable[..., Any], position: int, *devices: str) -> Callable[..., Any]:
        @functools.wraps(own)
        def run(*args: Any, **kwargs: Any) -> Any:
            first, *rest = own(*args, **kwargs)
            if first is not None and first.device.type in devices and not args[position]:
                first = in_order(first)
            return (first, *rest)

        return run

    def as_product(own: Callable[..., Any], position: int, *devices: str) -> Callable[..., Any]:
        @functools.wraps(own)
        def run(*args: Any, **kwargs: Any) -> Any:
            found = own(*args, **kwargs)
            if found.device.type not in devices:
                return found
            return torch.empty_like(
                torch.mul(*args[position : position + 2]), dtype=found.dtype, device=found.device
            )

        return run

    def ordered(own: Callable[..., Any], position: int, *devices: str) -> Callable[..., Any]:
        @functools.wraps(own)
        def run(*args: Any, **kwargs: Any) -> Any:
            found = own(*args, **kwargs)
            if args[position].device.type not in devices:
                return found
            if isinstance(found, torch.Tensor):
                return in_order(found)
            return tuple(map(in_order, found))

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
    added: list[Any] = []
    rules: list[tuple[str, Callable[..., Any], int, tuple[str, ...]]] = [
        *((name, laid_out, place, devices) for name, (place, devices) in IN_FORMAT.items()),
        *((name, typed, place, ()) for name, place in STATISTICS.items()),
        *((name, like, place, devices) for name, (place, devices) in LIKE.items()),
        *((name, evaluated, place, devices) for name, (place, devices) in IN_EVALUATION.items()),
        *((name, as_product, place, devices) for name, (place, devices) in PRODUCTS.items()),
        *((name, ordered, place, devices) for name, (place, devices) in ORDERED.items()),
    ]
    for name, rule, position, devices in rules:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload)
        # Functions of fake tensors alone take the mode and the op before its arguments.
        for table, first in ((decomposition_table, 0), (op_implementations_dict, 2)):
            if op in table:
                before.append((table, op, table[op]))
                table[op] = for_fakes(table[op], rule(table[op], first + position, *devices))
        if op not in op_implementations_dict and not _is_decomposed(op):
            added.append(op)
            op_implementations_dict[op] = _once(rule(_as_torch_says, 2 + position, *devices))
    FakeTensorMode.cache_clear()
    try:
        yield
    finally:
        is_over = True
        for table, op, own in reversed(before):
            table[op] = own
        for op in added:
            del op_implementations_dict[op]
        FakeTensorMode.cache_clear()


def _is_decomposed(op: Any) -> bool:
    """Whether torch's fake of `op` is what its table of decompositions holds.

    It is not for its references: those are registered a second time, as functions of meta tensors.
    """
    held = decomposition_table.get(op)
    return held is not None and not held.__module__.startswith("torch._refs")


def _once(laid: Callable[..., Any]) -> Callable[..., Any]:
    """`laid` for a call from outside; what it asks for itself is torch's own."""
    inside = False

    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if inside:
            return NotImplemented  # torch goes on to its own
        inside = True
        try:
            return laid(*args, **kwargs)
        finally:
            inside = False

    return run


def _as_torch_says(mode: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    with mode:
        return op(*args, **kwargs)
