"""Layers of torch's recurrent modules (`nn.LSTM`, `nn.GRU`, `nn.RNN`) as one op of the graph each.

Tracing would decompose them into the ops of every time step, without the dropout between layers,
and would never run their fused CPU kernels. Here a layer stays whole: its op runs the kernels of
the plain model, and its backward runs them again for what they save. The bits are those of the
plain model and the graph is small; the price is one additional forward of the layer. Of a module of
several layers each is an op, with dropout between them, as torch runs them on a CPU: what a kernel
saves is there for one layer at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from schedsim.errors import UnsupportedError

from ..measure.storage import COMPOSITES
from ..torch_private.autograd_nodes import autograd_within_an_op
from ..torch_private.recurrent_functions import own_function, replaced_functions

KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""The functions of torch that recurrent layers call."""


class Recurrence(NamedTuple):
    """The settings of a call of the layer: the last arguments of the ops, in their order.

    Attributes
    ----------
    derives
        Whether a gradient may be asked for: torch has other kernels where none can be.
    """

    kind: str
    bias: bool
    train: bool
    bidirectional: bool
    derives: bool = True


# The ops take flat arguments, as torch's schemas have no records.
_TENSORS = "Tensor x, Tensor? batch_sizes, Tensor[] states, Tensor[] weights"
_HOW = "str kind, bool bias, bool train, bool bidirectional, bool derives"
_GRADIENTS = "Tensor? grad_output, Tensor? grad_first, Tensor? grad_second"


def _run(
    x: Tensor,
    batch_sizes: Tensor | None,
    states: list[Tensor],
    weights: list[Tensor],
    how: Recurrence,
) -> list[Tensor]:
    """Output and final states by torch's own function, time first."""
    function = own_function(how.kind)
    start: Any = states if how.kind == "lstm" else states[0]
    options = how.bias, 1, 0.0, how.train, how.bidirectional
    if batch_sizes is None:
        found = function(x, start, weights, *options, False)
    else:
        found = function(x, batch_sizes, start, weights, *options)
    return list(found)


def _eager_forward(
    x: Tensor, batch_sizes: Tensor | None, states: list[Tensor], weights: list[Tensor], *given: Any
) -> tuple[Tensor, Tensor, Tensor]:
    how = Recurrence(*given)
    # The kernel depends on whether a gradient is needed: it must be that of the plain model.
    kernels = autograd_within_an_op() if how.derives else torch.no_grad()
    with kernels:
        wanted = [w.detach().requires_grad_(how.derives) for w in weights]
        found = _run(x.detach(), batch_sizes, states, wanted, how)
    own = [_own(tensor.detach()) for tensor in found]
    return (*own, x.new_empty(0)) if len(own) == 2 else tuple(own)  # type: ignore[return-value]


def _own(tensor: Tensor) -> Tensor:
    """`tensor` in a dense storage of its own."""
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if whole and tensor.is_contiguous() else tensor.clone().contiguous()


@torch.library.custom_op(
    "schedsim::recurrent",
    mutates_args=(),
    schema=f"({_TENSORS}, {_HOW}) -> (Tensor, Tensor, Tensor)",
)
def _forward(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Output and final states; the second is empty except for an LSTM."""
    return _eager_forward(*given)


@_forward.register_fake
def _(
    x: Tensor, batch_sizes: Tensor | None, states: list[Tensor], weights: list[Tensor], *given: Any
) -> tuple[Tensor, Tensor, Tensor]:
    how = Recurrence(*given)
    wide = states[0].shape[-1] * (2 if how.bidirectional else 1)
    second = states[1].new_empty(states[1].shape) if how.kind == "lstm" else x.new_empty(0)
    return (
        x.new_empty((*x.shape[:-1], wide)),
        states[0].new_empty(states[0].shape),
        second,
    )


def _eager_backward(*given: Any) -> list[Tensor]:
    gradients_given: tuple[Tensor | None, ...] = given[:3]
    x, batch_sizes, states, weights = given[3:7]
    how, wanted = Recurrence(*given[7:-1]), given[-1]
    flat = [
        tensor.detach().requires_grad_(wants)
        for tensor, wants in zip([x, *states, *weights], wanted, strict=True)
    ]
    num = len(states)
    with autograd_within_an_op():
        found = _run(flat[0], batch_sizes, flat[1 : 1 + num], flat[1 + num :], how)
        pairs = [
            (tensor, gradient)
            for tensor, gradient in zip(found, gradients_given, strict=False)
            if gradient is not None and tensor.requires_grad
        ]
        gradients = torch.autograd.grad(
            [tensor for tensor, _ in pairs],
            [tensor for tensor in flat if tensor.requires_grad],
            [gradient for _, gradient in pairs],
            allow_unused=True,
        )
    rest = iter(gradients)
    made = []
    for tensor, wants in zip(flat, wanted, strict=True):
        gradient = next(rest) if wants else tensor.new_empty(0)
        made.append(torch.zeros_like(tensor) if gradient is None else _own(gradient))
    return made


@torch.library.custom_op(
    "schedsim::recurrent_backward",
    mutates_args=(),
    schema=f"({_GRADIENTS}, {_TENSORS}, {_HOW}, bool[] wanted) -> Tensor[]",
)
def _backward(*given: Any) -> list[Tensor]:
    """Gradients of the input, the states and the weights; empty where none is needed."""
    return _eager_backward(*given)


@_backward.register_fake
def _(*given: Any) -> list[Tensor]:
    x, _, states, weights = given[3:7]
    wanted = given[-1]
    flat = [x, *states, *weights]
    return [t.new_empty(t.shape if w else (0,)) for t, w in zip(flat, wanted, strict=True)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, batch_sizes, states, weights, *how = inputs
    ctx.set_materialize_grads(False)
    ctx.how, ctx.num_states = how, len(states)
    ctx.has_sizes = batch_sizes is not None
    sizes = [batch_sizes] if ctx.has_sizes else []
    ctx.save_for_backward(x, *sizes, *states, *weights)


def _pull(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
    x, *rest = ctx.saved_tensors
    batch_sizes = rest.pop(0) if ctx.has_sizes else None
    states, weights = rest[: ctx.num_states], rest[ctx.num_states :]
    needs = ctx.needs_input_grad
    wanted = [bool(needs[0]), *_flags(needs[2], len(states)), *_flags(needs[3], len(weights))]
    kind = ctx.how[0]
    second = gradients[2] if kind == "lstm" else None
    found = torch.ops.schedsim.recurrent_backward(
        gradients[0],
        gradients[1],
        second,
        x,
        batch_sizes,
        states,
        weights,
        *ctx.how,
        wanted,
    )
    made = [g if wants else None for g, wants in zip(found, wanted, strict=True)]
    num = 1 + len(states)
    return (made[0], None, made[1:num], made[num:], *(None for _ in ctx.how))


def _flags(needs: Any, num: int) -> list[bool]:
    return [bool(n) for n in needs] if isinstance(needs, list | tuple) else [bool(needs)] * num


_forward.register_autograd(_pull, setup_context=_keep)

COMPOSITES[torch.ops.schedsim.recurrent.default] = _eager_forward
COMPOSITES[torch.ops.schedsim.recurrent_backward.default] = _eager_backward


@contextlib.contextmanager
def whole_recurrence() -> Iterator[None]:
    """Trace recurrent layers on the CPU as one op each."""
    with replaced_functions({kind: layer_as_op(kind) for kind in KINDS}):
        yield


@cache
def layer_as_op(kind: str) -> Callable[..., Any]:
    """A function that is called as torch's own of this kind, and makes one op of the layer."""

    # One function for good: Dynamo guards on it.
    def packed(*args: Any) -> Any:
        if torch.is_autocast_enabled("cpu"):
            raise UnsupportedError(
                "a recurrent layer under autocast cannot be captured op by op", hint="level='block'"
            )
        x, second, *rest = args
        if not isinstance(rest[1], bool):  # packed: states and weights, then whether with biases
            states, weights, bias, layers, dropout, train, both = rest
            sizes, batch_first = second, False
        else:
            states, (weights, bias, layers, dropout, train, both, batch_first) = second, rest
            sizes = None
        states = list(states) if kind == "lstm" else [states]
        x = x.transpose(0, 1) if batch_first else x
        derives = torch.is_grad_enabled() and any(t.requires_grad for t in (x, *states, *weights))
        num_states, num_weights = (2 if both else 1), len(weights) // layers
        ends: list[tuple[Tensor, Tensor]] = []
        for layer in range(layers):
            own = [t[layer * num_states : (layer + 1) * num_states] for t in states]
            used = list(weights[layer * num_weights : (layer + 1) * num_weights])
            how = (kind, bias, train, both, derives)
            x, *end = torch.ops.schedsim.recurrent(x, sizes, own, used, *how)
            ends.append(end)
            if train and dropout and layer + 1 < layers:
                x = torch.dropout(x, dropout, True)
        lasts = [torch.cat(parts) if layers > 1 else parts[0] for parts in zip(*ends, strict=True)]
        x = x.transpose(0, 1) if batch_first else x
        return (x, *lasts) if kind == "lstm" else (x, lasts[0])

    return packed


@register_flop_formula(torch.ops.schedsim.recurrent)
def _forward_flops(
    x_shape: Any, _sizes: Any, _states: Any, weights: Any, *_: Any, **__: Any
) -> int:
    rows = 1
    for size in x_shape[:-1]:
        rows *= size
    return int(sum(2 * rows * shape[0] * shape[1] for shape in weights if len(shape) == 2))


@register_flop_formula(torch.ops.schedsim.recurrent_backward)
def _backward_flops(*shapes: Any, **_: Any) -> int:
    x_shape, _sizes, states, weights = shapes[3:7]
    return 3 * _forward_flops(x_shape, None, states, weights)
