"""Comparison of a model's step in place with the plain step, before the loop and within it.

Within the loop, the comparison comes with every new graph of Dynamo: that two schedules of one
graph agree says nothing about the graph. Such a comparison keeps only numbers that represent bits,
and what the plain step saves for its backward is stored outside of the device's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from schedsim.errors import SchedsimError, UnsupportedError

from ..capture.capture import record_step
from ..guards.differential import Both, Difference
from ..torch_private.pytrees import tree_leaves
from .saved_elsewhere import saved_elsewhere
from .schedule_check import bits_of, made_up_gradient

Step = Callable[..., Any]


def made_up_loss(output: Any) -> Tensor:
    """A scalar in which every differentiable entry of `output` has another weight."""
    own = getattr(output, "loss", None)
    if isinstance(own, Tensor) and own.requires_grad and not own.ndim:
        return own
    total: Tensor | None = None
    for leaf in _differentiable(output):
        flat = leaf.reshape(-1)
        flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
        weights = torch.cos(torch.arange(flat.numel(), device=flat.device))
        term = (flat * weights.to(flat.dtype)).sum().float() / flat.numel()
        total = term if total is None else total + term
    assert total is not None
    return total


def _tensors(output: Any) -> list[Tensor]:
    """The tensors of `output`; those of a dataclass that is unknown to torch, too."""
    found: list[Tensor] = []
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            found += [t for field in fields(leaf) for t in _tensors(getattr(leaf, field.name))]
    return found


def _differentiable(output: Any) -> list[Tensor]:
    leaves = [t for t in _tensors(output) if t.requires_grad]
    if not leaves:
        raise UnsupportedError(
            "no output of the model needs a gradient",
            hint="is some parameter left with requires_grad? Outputs are tensors, in lists, dicts "
            "and dataclasses",
        )
    return leaves


def difference(
    model: nn.Module,
    plain: Step,
    planned: Step,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    rounded: bool,
) -> Difference | None:
    """The difference of a step by `planned` from one by `plain`; all state is restored.

    Parameters
    ----------
    plain, planned
        Functions that give the output of `model`, which must be called without its budget
        meanwhile.
    rounded
        Whether the planned step is known to round differently.
    """
    recorded = record_step(model, made_up_loss, inputs, keywords)
    both = Both(model, made_up_loss, recorded)
    return both.difference(
        lambda *inputs, **keywords: made_up_loss(plain(*inputs, **keywords)),
        lambda *inputs, **keywords: made_up_loss(planned(*inputs, **keywords)),
        inputs,
        keywords,
        rounded=rounded,
    )


def frugal_difference(
    model: nn.Module,
    plain: Step,
    planned: Step,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    rounded: bool,
) -> Difference | None:
    """The `difference`; with equal bits it takes no more memory than the planned step.

    Where bits differ, the steps run once more to measure by how much, with the plain step's memory.
    """
    if not rounded:
        recorded = record_step(model, _Digest.of, inputs, keywords)
        both = Both(model, _Digest.of, recorded, kept=digest)
        with saved_elsewhere([*model.parameters(), *model.buffers()]):
            expected = both.run(
                lambda *inputs, **keywords: _Digest.of(plain(*inputs, **keywords)), inputs, keywords
            )
        try:
            found = both.run(
                lambda *inputs, **keywords: _Digest.of(planned(*inputs, **keywords)),
                inputs,
                keywords,
            )
            if both.compared(expected, found) is None:
                return None
        except SchedsimError:
            raise
        except Exception:  # the comparison below reports it
            pass
    return difference(model, plain, planned, inputs, keywords, rounded)


def digest(tensor: Tensor) -> Tensor:
    """A small tensor that represents the bits of `tensor`, its shape and its strides."""
    *_, number = bits_of(tensor)
    return torch.tensor([*tensor.shape, *tensor.stride(), number - (1 << 63)])


class _OutputForm(NamedTuple):
    """The form of a tensor: everything but its numbers."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class _Digest(torch.autograd.Function):
    """A scalar that represents the bits of outputs; its backward returns made-up gradients."""

    @classmethod
    def of(cls, output: Any) -> Tensor:
        _differentiable(output)
        leaves = [t for t in tree_leaves(output) if isinstance(t, Tensor)]
        found: Tensor = cls.apply(*leaves)  # type: ignore[no-untyped-call]  # torch's is untyped
        return found

    @staticmethod
    def forward(ctx: Any, *leaves: Tensor) -> Tensor:
        ctx.forms = [
            _OutputForm(
                tuple(t.shape), torch.empty_like(t, device="meta").stride(), t.dtype, t.device
            )
            for t in leaves
        ]
        ctx.set_materialize_grads(False)
        numbers = [int(digest(t)[-1]) for t in leaves]
        return torch.tensor(float(hash(tuple(numbers)) >> 11), dtype=torch.float64)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        return tuple(
            made_up_gradient(form, seed) if needed else None
            for seed, (form, needed) in enumerate(zip(ctx.forms, ctx.needs_input_grad, strict=True))
        )
