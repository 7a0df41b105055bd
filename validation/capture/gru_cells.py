"""The gates of `nn.GRUCell` as one op of the graph, next to its two products.

torch's own function writes the gates in place, into slices of a product. A trace makes each of
these ops one of a dense tensor, for which the kernels take another loop, with other last bits.
Here the gates stay one op that writes in place as torch does; its backward runs them again. The
cells of LSTMs and of plain recurrent layers need no such op.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ..measure.storage import COMPOSITES
from ..torch_private.autograd_nodes import autograd_within_an_op
from ..torch_private.recurrent_functions import own_function, replaced_functions


def has_gru_cells(model: nn.Module) -> bool:
    """Whether `model` has a GRU's cell, and those that it has are on the CPU."""
    cells = [m for m in model.modules() if isinstance(m, nn.GRUCell)]
    return bool(cells) and all(p.device.type == "cpu" for m in cells for p in m.parameters())


@contextlib.contextmanager
def whole_gru_gates() -> Iterator[None]:
    """Trace a GRU's cell on the CPU as two products and one op for its gates."""
    with replaced_functions({"gru_cell": gru_cell_as_op}):
        yield


def gru_cell_as_op(x: Tensor, hidden: Tensor, *weights: Tensor | None) -> Tensor:
    """What torch's own function of a cell gives, by two products and one op."""
    if torch.is_autocast_enabled("cpu"):
        found: Tensor = own_function("gru_cell")(x, hidden, *weights)
        return found
    from_input, from_hidden, *biases = weights
    assert from_input is not None
    assert from_hidden is not None
    first, second = biases or (None, None)
    # The order of torch's own function, which is the order in which gradients are added.
    of_input = linear(x, from_input, first)
    gated: Tensor = torch.ops.schedsim.gru_gates(
        of_input, linear(hidden, from_hidden, second), hidden
    )
    return gated


def _in_place(of_input: Tensor, of_hidden: Tensor, hidden: Tensor) -> Tensor:
    """The next state; the gates are written into `of_hidden`."""
    inputs, gates = of_input.unsafe_chunk(3, 1), of_hidden.unsafe_chunk(3, 1)
    reset = gates[0].add_(inputs[0]).sigmoid_()
    update = gates[1].add_(inputs[1]).sigmoid_()
    new = inputs[2].add(gates[2].mul_(reset)).tanh_()
    return (hidden - new).mul_(update).add_(new)


def _eager_forward(of_input: Tensor, of_hidden: Tensor, hidden: Tensor) -> Tensor:
    return _in_place(of_input, of_hidden.clone(), hidden)


@torch.library.custom_op("schedsim::gru_gates", mutates_args=())
def _forward(of_input: Tensor, of_hidden: Tensor, hidden: Tensor) -> Tensor:
    """The next state, from the products with the input and with the state, and the state."""
    return _eager_forward(of_input, of_hidden, hidden)


@_forward.register_fake
def _(of_input: Tensor, of_hidden: Tensor, hidden: Tensor) -> Tensor:
    return torch.empty_like(hidden)


def _eager_backward(
    gradient: Tensor, of_input: Tensor, of_hidden: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    with autograd_within_an_op():
        given = [t.detach().requires_grad_() for t in (of_input, of_hidden, hidden)]
        found = _in_place(given[0], given[1].clone(), given[2])
        first, second, third = torch.autograd.grad(found, given, gradient)
    return first, second, third.clone() if third is gradient else third


@torch.library.custom_op("schedsim::gru_gates_backward", mutates_args=())
def _backward(
    gradient: Tensor, of_input: Tensor, of_hidden: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the two products and of the state, apart from its product."""
    return _eager_backward(gradient, of_input, of_hidden, hidden)


@_backward.register_fake
def _(
    gradient: Tensor, of_input: Tensor, of_hidden: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    dense = torch.contiguous_format
    return (
        torch.empty_like(of_input, memory_format=dense),
        torch.empty_like(of_hidden, memory_format=dense),
        torch.empty_like(hidden),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _pull(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    made: tuple[Tensor, Tensor, Tensor] = torch.ops.schedsim.gru_gates_backward(
        gradient, *ctx.saved_tensors
    )
    return made


_forward.register_autograd(_pull, setup_context=_keep)

COMPOSITES[torch.ops.schedsim.gru_gates.default] = _eager_forward
COMPOSITES[torch.ops.schedsim.gru_gates_backward.default] = _eager_backward
