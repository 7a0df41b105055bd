"""Layouts and types that kernels give their results, where torch's fake tensors say others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_impls import op_implementations_dict
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import get_proxy_mode

_CPU, _CUDA, _BOTH = ("cpu",), ("cuda",), ("cpu", "cuda")


@contextmanager
def true_layouts() -> Iterator[None]:
    """Within a trace, have ops make their results as their kernels on the CPU and CUDA do.

    torch's fakes of batch norms keep the strides of the input; the kernels write in the order of
    dimensions, or channels last. A view that a trace takes of the one would fail on the other.
    Fakes of norms give mean and deviation the type of the input; the CPU's kernels give
    them that of the weight, which autocast leaves in float32, and their backward asks for it.
    The gradient of a group norm's input has the type of the input, and by the fakes the weight's.
    Fakes of the backwards of dropout and of activations, and of some ops of two operands, write in
    the order of dimensions or of one operand, the kernels as products do; those of losses do the
    opposite.
    """
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
    for name, rule, position, devices in RULES:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload)
        # Functions of fake tensors alone take the mode and the op before its arguments.
        for table, first in ((decomposition_table, 0), (op_implementations_dict, 2)):
            if op in table:
                own = table[op]
                before.append((table, op, own))
                table[op] = for_fakes(own, _ruled(own, rule, first + position, devices))
        if op not in op_implementations_dict and not _is_decomposed(op):
            added.append(op)
            laid = _ruled(_as_torch_says, rule, 2 + position, devices)
            op_implementations_dict[op] = _once(laid)
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


def _ruled(
    own: Callable[..., Any], rule: Callable[..., Any], position: int, devices: Sequence[str]
) -> Callable[..., Any]:
    """`own`, whose result on one of `devices` goes through `rule`."""

    @functools.wraps(own)  # torch looks at its name and module
    def run(*args: Any, **kwargs: Any) -> Any:
        found = own(*args, **kwargs)
        device = next(it.device.type for it in args if isinstance(it, torch.Tensor))
        return rule(found, args, position) if device in devices else found

    return run


def _in_format(found: Any, args: Sequence[Any], position: int) -> Any:
    """The first result is in order, or channels-last where the input is."""
    memory_format = suggest_memory_format(args[position])
    return _first(found, lambda it: torch.empty_like(it, memory_format=memory_format))


def _like(found: Any, args: Sequence[Any], position: int) -> Any:
    """The result lies as the input does."""
    return torch.empty_like(args[position], dtype=found.dtype)


def _in_order(found: Any, args: Sequence[Any], position: int) -> Any:
    """All results are in the order of dimensions."""
    if isinstance(found, torch.Tensor):
        return _ordered(found)
    return tuple(map(_ordered, found))


def _in_order_if_evaluated(found: Any, args: Sequence[Any], position: int) -> Any:
    """The first result is in order, where the argument at `position` says that nothing trains."""
    return found if args[position] else _first(found, _ordered)


def _as_product(found: Any, args: Sequence[Any], position: int) -> Any:
    """The result lies as a product of two operands, of which `position` is the first."""
    product = torch.mul(*args[position : position + 2])
    return torch.empty_like(product, dtype=found.dtype, device=found.device)


def _statistics(found: Any, args: Sequence[Any], position: int) -> Any:
    """Mean and deviation have the type of the weight at `position`, or of the next tensor."""
    first, mean, deviation, *rest = found
    held = [it for it in args[position : position + 4] if isinstance(it, torch.Tensor)]
    if held:
        mean, deviation = mean.to(held[0].dtype), deviation.to(held[0].dtype)
    return first, mean, deviation, *rest


def _group_norm(found: Any, args: Sequence[Any], position: int) -> Any:
    """The first result lies as the input; mean and deviation have the type of what is next."""
    return _in_format(_statistics(found, args, position + 1), args, position)


def _group_norm_backward(found: Any, args: Sequence[Any], position: int) -> Any:
    """The first result lies as the input, and has its type."""
    typed = _first(found, lambda it: it.to(args[position].dtype))
    return _in_format(typed, args, position)


def _first(found: Any, lay: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`found` with its first result laid out; there may be none."""
    if isinstance(found, torch.Tensor):
        return lay(found)
    first, *rest = found
    return (first if first is None else lay(first), *rest)


def _ordered(found: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(found, memory_format=torch.contiguous_format)


RULES: list[tuple[str, Callable[..., Any], int, Sequence[str]]] = [
    # CUDA's forwards of batch norms keep the strides, as the fakes do.
    ("_batch_norm_with_update.default", _in_format, 0, _CPU),
    ("_native_batch_norm_legit.default", _in_format, 0, _CPU),
    ("_native_batch_norm_legit.no_stats", _in_format, 0, _CPU),
    ("_native_batch_norm_legit_functional.default", _in_format, 0, _CPU),
    ("native_batch_norm.default", _in_format, 0, _CPU),
    ("batch_norm_backward.default", _in_format, 1, _BOTH),
    ("native_batch_norm_backward.default", _in_format, 1, _BOTH),
    ("native_batch_norm_backward.default", _in_order_if_evaluated, 7, _CUDA),
    ("_batch_norm_with_update.default", _statistics, 1, _CPU),
    ("_native_batch_norm_legit.default", _statistics, 1, _CPU),
    ("_native_batch_norm_legit.no_stats", _statistics, 1, _CPU),
    ("_native_batch_norm_legit_functional.default", _statistics, 1, _CPU),
    ("native_batch_norm.default", _statistics, 1, _CPU),
    ("channel_shuffle.default", _in_format, 0, _CPU),
    ("max_unpool2d.default", _in_format, 0, _CPU),
    ("replication_pad2d_backward.default", _in_format, 1, _CPU),
    ("upsample_bilinear2d.default", _in_format, 0, _BOTH),
    ("upsample_trilinear3d.default", _in_format, 0, _BOTH),
    # torch 2.14's fakes of group norms write in the order of dimensions, as CUDA's kernels do.
    ("native_group_norm.default", _group_norm, 0, _CPU),
    ("native_group_norm_backward.default", _group_norm_backward, 1, _CPU),
    ("native_layer_norm.default", _statistics, 2, _CPU),
    ("binary_cross_entropy_backward.default", _like, 1, _BOTH),
    ("copysign.Tensor", _as_product, 0, _BOTH),
    ("div.Tensor_mode", _as_product, 0, _BOTH),
    ("floor_divide.default", _as_product, 0, _BOTH),
    ("hardsigmoid_backward.default", _as_product, 0, _BOTH),
    ("hardswish_backward.default", _as_product, 0, _BOTH),
    ("hardtanh_backward.default", _as_product, 0, _BOTH),
    ("heaviside.default", _as_product, 0, _BOTH),
    ("logaddexp.default", _as_product, 0, _BOTH),
    ("logaddexp2.default", _as_product, 0, _BOTH),
    ("logical_and.default", _as_product, 0, _BOTH),
    ("logical_or.default", _as_product, 0, _BOTH),
    ("logical_xor.default", _as_product, 0, _BOTH),
    ("logit_backward.default", _as_product, 0, _BOTH),
    ("native_dropout_backward.default", _as_product, 0, _CPU),
    ("native_dropout_backward.default", _in_format, 0, _CUDA),
    ("softplus_backward.default", _as_product, 0, _BOTH),
    ("special_xlog1py.default", _as_product, 0, _BOTH),
    ("xlogy.Tensor", _as_product, 0, _BOTH),
    ("_log_softmax_backward_data.default", _in_order, 0, _BOTH),
    ("glu_backward.default", _in_order, 1, _BOTH),
    ("huber_loss_backward.default", _in_order, 1, _BOTH),
    ("log_sigmoid_forward.default", _in_order, 0, _CPU),
    ("mse_loss_backward.default", _in_order, 1, _BOTH),
    ("nll_loss2d_forward.default", _in_order, 0, _BOTH),
    ("normal.Tensor_Tensor", _in_order, 0, _BOTH),
    ("pow.Scalar", _in_order, 1, _BOTH),
    ("smooth_l1_loss_backward.default", _in_order, 1, _BOTH),
]
"""Op, what is done to its results, the position of an argument that tells, and devices."""


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
