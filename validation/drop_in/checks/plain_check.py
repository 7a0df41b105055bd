"""Comparison of a model's step in place with the plain step, before the loop and within it.

Within the loop, the comparison comes with every new graph of Dynamo: that two schedules of one
graph agree says nothing about the graph.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from schedsim.errors import UnsupportedError

from ...autocasts import run_backward
from ...block_level.repeated_forward import nearly_equal, same_values, untouched
from ...capture.capture import record_step
from ...guards.differential import Both, Difference
from ...guards.float64_step import in_float64
from ...guards.recording import detached_copies
from ...guards.saved_elsewhere import saved_elsewhere
from ...guards.state_change import ATOMS
from ...guards.state_walk import slots_of
from ...guards.tensor_bits import made_up_gradient
from ...measure.storage import local
from ...torch_private.module_tables import buffers_of, parameters_of
from ...torch_private.pytrees import tree_leaves
from ...torch_private.storage_refs import share_of
from ...whole_step.step_check import PlainMemory

Step = Callable[..., Any]
_DEPTH = 4
"""Most objects within each other in which tensors of an output are looked for."""
_OPAQUE = (*ATOMS, type, nn.Module, FunctionType, MethodType)


def made_up_loss(output: Any) -> Tensor:
    """A scalar in which every differentiable entry of `output` has another weight.

    Gradients come in the strides of the outputs, for which graphs are traced at first.
    """
    own = _own_loss(output)
    if own is not None:
        return own
    total: Tensor | None = None
    for leaf in map(_own_share, _differentiable(output)):
        value = torch.view_as_real(leaf) if leaf.is_complex() else leaf
        numbers = torch.cos(torch.arange(value.numel(), device=value.device))
        weights = torch.empty_like(value.detach()).copy_(numbers.view(value.shape))
        term = (value * weights).sum().float() / value.numel()
        total = term if total is None else total + term
    assert total is not None
    return total


def _own_share(tensor: Tensor) -> Tensor:
    """`tensor`, or this rank's share of one that is spread over ranks, as autograd knows it."""
    if share_of(tensor) is tensor:
        return tensor
    spread: Any = tensor
    found: Tensor = spread.to_local()
    return found


def _own_loss(output: Any) -> Tensor | None:
    """The loss that a model has computed itself, by which its loop trains."""
    own = getattr(output, "loss", None)
    return own if isinstance(own, Tensor) and own.requires_grad and not own.ndim else None


def _tensors(output: Any) -> list[Tensor]:
    """The tensors of `output`; those of objects unknown to torch's trees, too.

    As of a dataclass, or of a distribution with what it was made of.
    """
    return _found_in(output, _DEPTH, {})


def _found_in(output: Any, depth: int, seen: dict[int, Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif depth and id(leaf) not in seen and not isinstance(leaf, _OPAQUE):
            seen[id(leaf)] = leaf
            held = [name for kind in type(leaf).__mro__ for name in slots_of(kind)]
            values = [*getattr(leaf, "__dict__", {}).values()]
            values += [getattr(leaf, name) for name in held if hasattr(leaf, name)]
            found += [t for value in values for t in _found_in(value, depth - 1, seen)]
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
    given: tuple[tuple[Any, ...], Mapping[str, Any]],
    rounded: bool,
    memory: PlainMemory,
) -> Difference | None:
    """The difference of a step by `planned` from one by `plain`; all state is restored.

    Parameters
    ----------
    plain, planned
        Functions that give the output of `model`, which must be called without its budget
        meanwhile.
    given
        Inputs and keywords.
    rounded
        Whether the planned step is known to round differently.
    memory
        Of the plain step, which is taken only where it must be.

    Raises
    ------
    NotCompared
        There is no room for the comparison.
    """
    made_up, (inputs, keywords) = MadeUpGradients(), given

    def in_wide_numbers(nudge: int | None) -> Mapping[str, Tensor]:
        wide, *its = in_float64((model, inputs, dict(keywords)), nudge)
        return Both(wide, None, None, _tensors, made_up.loss).results(wide, *its)

    def by_torch_compile() -> Mapping[str, Tensor]:
        own = copy.deepcopy(model)
        both = Both(own, None, None, _tensors, made_up.loss)
        return both.compiled_results(lambda *a, **k: own(*a, **k), inputs, keywords)

    with _of_leaves(model):
        recorded = record_step(model, made_up.loss, inputs, keywords, parts_may_be_scripted=True)
        both = Both(model, None, recorded, _tensors, made_up.loss, memory.take)
        exact = memory.float64_step(in_wide_numbers, by_torch_compile) if rounded else None
        return both.difference(plain, planned, inputs, keywords, rounded=rounded, exact=exact)


@contextmanager
def _of_leaves(model: nn.Module) -> Iterator[None]:
    """Let leaves stand in for parameters that the loop has computed (`torch.func.functional_call`).

    The backwards of a comparison would otherwise go on into the loop's own graph, and free it.
    """
    leaves: dict[int, Any] = {}
    replaced: list[tuple[dict[str, Any], str, Tensor]] = []
    for module in model.modules():
        tables: tuple[dict[str, Any], ...] = (parameters_of(module), buffers_of(module))
        for table in tables:
            for name, tensor in table.items():
                if tensor is not None and not tensor.is_leaf:
                    if id(tensor) not in leaves:
                        leaves[id(tensor)] = tensor.detach().requires_grad_()
                    replaced.append((table, name, tensor))
    try:
        for table, name, tensor in replaced:
            table[name] = leaves[id(tensor)]
        yield
    finally:
        for table, name, tensor in replaced:
            table[name] = tensor


Results = dict[str, Tensor | None]
"""Outputs and gradients of a step by name; of sharded parameters, this rank's shares."""


def run_on_rank(model: nn.Module, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
    """Run a step of a model that communicates; all state is restored."""
    with untouched(model), without_gradients(model):
        inputs, keywords = detached_copies((inputs, dict(keywords)))
        run_backward(made_up_loss(model(*inputs, **keywords)))


def results_on_rank(
    model: nn.Module,
    step: Step,
    given: tuple[tuple[Any, ...], Mapping[str, Any]],
    copied: Callable[[Tensor], Tensor],
    *,
    saves_elsewhere: bool = False,
) -> Results:
    """The results of a step of a model that communicates; all state is restored.

    Parameters
    ----------
    copied
        Makes the copies that are given.
    saves_elsewhere
        Whether what the step saves for its backward waits outside of the device's memory.
    """
    stay = [*model.parameters(), *model.buffers()]
    elsewhere = saved_elsewhere(stay) if saves_elsewhere else nullcontext()
    inputs, keywords = given
    with untouched(model), without_gradients(model), elsewhere:
        inputs, keywords = detached_copies((inputs, dict(keywords)))
        output = step(*inputs, **keywords)
        left: Results = {
            f"output {i}": copied(local(leaf)) for i, leaf in enumerate(_tensors(output))
        }
        loss = made_up_loss(output)
        del output
        run_backward(loss)
        for name, parameter in model.named_parameters():
            gradient = parameter.grad
            left[f"the gradient of {name}"] = None if gradient is None else copied(local(gradient))
    return left


def difference_of_results(expected: Results, found: Results) -> Difference | None:
    """The first difference between the results of two steps; ``None`` if there is none.

    Examples
    --------
    >>> import torch
    >>> one, other = {"output 0": torch.ones(2)}, {"output 0": torch.ones(2) + 1e-7}
    >>> str(difference_of_results(one, other)), difference_of_results(one, other).rounding
    ('output 0 is another', True)
    """
    different = [name for name in expected if not _is_same(expected[name], found.get(name))]
    if not different:
        return None
    pairs = [(expected[name], found.get(name)) for name in different]
    near = all(
        one is not None and two is not None and one.shape == two.shape and nearly_equal(one, two)
        for one, two in pairs
    )
    more = f", and {len(different) - 1} more" if len(different) > 1 else ""
    return Difference(f"{different[0]} is another{more}", near)


def _is_same(one: Tensor | None, two: Tensor | None) -> bool:
    if one is None or two is None:
        return one is two
    return same_values(one, two)


@contextmanager
def without_gradients(model: nn.Module) -> Iterator[None]:
    """Run the block without the gradients that are there, which are put back."""
    kept = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        for parameter, _ in kept:
            parameter.grad = None
        yield
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient


class _OutputForm(NamedTuple):
    """The form of a tensor: everything but its numbers."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class MadeUpGradients:
    """Gradients for the outputs of one step, which are the same numbers in each of its runs.

    They are in the strides of the outputs, for which graphs are traced at first, and in no memory
    but their own.
    """

    def __init__(self) -> None:
        self._dtypes: dict[int, torch.dtype] = {}

    def loss(self, output: Any) -> Tensor:
        """A number whose backward gives them to what `output` holds."""
        _differentiable(output)
        leaves, own = _tensors(output), _own_loss(output)
        if own is not None:  # as in the loop, gradients of other outputs are not there
            leaves = [t if t is own else t.detach() for t in leaves]
        # A step in float64 gets the numbers of the format that the first run is in.
        dtypes = [self._dtypes.setdefault(i, t.dtype) for i, t in enumerate(leaves)]
        found: Tensor = _MadeUp.apply(dtypes, *leaves)  # type: ignore[no-untyped-call]  # torch's is untyped
        return found


class _MadeUp(torch.autograd.Function):
    """A zero made of outputs; its backward returns made-up gradients."""

    @staticmethod
    def forward(ctx: Any, dtypes: list[torch.dtype], *leaves: Tensor) -> Tensor:
        ctx.dtypes = [t.dtype for t in leaves]
        ctx.forms = [
            _OutputForm(
                tuple(t.shape), torch.empty_like(t, device="meta").stride(), dtype, t.device
            )
            for dtype, t in zip(dtypes, leaves, strict=True)
        ]
        ctx.set_materialize_grads(False)
        return torch.zeros((), dtype=torch.float64)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        rows = zip(ctx.forms, ctx.dtypes, ctx.needs_input_grad[1:], strict=True)
        gradients = (
            made_up_gradient(form, seed).to(dtype) if needed else None
            for seed, (form, dtype, needed) in enumerate(rows)
        )
        return (None, *gradients)
