"""Comparison of a model's step in place with the plain step, before the loop and within it.

Within the loop, the comparison comes with every new graph of Dynamo: that two schedules of one
graph agree says nothing about the graph. Such a comparison keeps only numbers that represent bits,
and what the plain step saves for its backward is stored outside of the device's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from schedsim.errors import SchedsimError, UnsupportedError

from ...autocasts import run_backward
from ...block_level.repeated_forward import nearly_equal, same_values, untouched
from ...capture.capture import record_step
from ...guards.differential import Both, Difference
from ...guards.float64_step import Float64Step, in_float64
from ...guards.recording import Recorded, detached_copies
from ...guards.state_change import ATOMS
from ...guards.state_walk import slots_of
from ...measure.storage import local
from ...torch_private.module_tables import buffers_of, parameters_of
from ...torch_private.pytrees import tree_leaves
from .saved_elsewhere import copied_elsewhere, saved_elsewhere
from .tensor_bits import bits_of, made_up_gradient

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
    for leaf in _differentiable(output):
        value = torch.view_as_real(leaf) if leaf.is_complex() else leaf
        numbers = torch.cos(torch.arange(value.numel(), device=value.device))
        weights = torch.empty_like(value.detach()).copy_(numbers.view(value.shape))
        term = (value * weights).sum().float() / value.numel()
        total = term if total is None else total + term
    assert total is not None
    return total


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
    recorded = record_step(model, made_up_loss, inputs, keywords, parts_may_be_scripted=True)
    both = Both(model, made_up_loss, recorded)

    def in_wide_numbers(nudge: int | None) -> Mapping[str, Tensor]:
        wide, given, named = in_float64((model, inputs, dict(keywords)), nudge)

        def step(*inputs: Any, **keywords: Any) -> Tensor:
            return made_up_loss(wide(*inputs, **keywords))

        return Both(wide, made_up_loss, None).results(step, given, named)

    return both.difference(
        lambda *inputs, **keywords: made_up_loss(plain(*inputs, **keywords)),
        lambda *inputs, **keywords: made_up_loss(planned(*inputs, **keywords)),
        inputs,
        keywords,
        rounded=rounded,
        exact=Float64Step(in_wide_numbers) if rounded else None,
    )


class FrugalDifference(NamedTuple):
    """The difference of a step from the plain one, and whether it took the plain step's memory."""

    found: Difference | None
    is_over: bool


def frugal_difference(
    model: nn.Module,
    plain: Step,
    planned: Step,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    rounded: bool,
) -> FrugalDifference:
    """The `difference`, with no more memory than the planned step takes.

    Where bits differ, both steps run once more, and their results are kept outside of the
    device's memory too. The plain step's memory is taken only where the difference is more than
    rounding, or a step fails: such a graph is not used, or it is as exact as the plain step.
    """
    with _of_leaves(model):
        recorded = record_step(model, _Digest.of, inputs, keywords, parts_may_be_scripted=True)
        frugal = _Frugal(model, plain, planned, inputs, keywords, recorded)
        try:
            if not rounded and frugal.has_equal_bits():
                return FrugalDifference(None, False)
            found = frugal.difference(rounded)
            if found is None or found.rounding:
                return FrugalDifference(found, False)
        except _PlannedFails:  # the comparison below reports it
            pass
        return FrugalDifference(difference(model, plain, planned, inputs, keywords, rounded), True)


class _PlannedFails(Exception):
    """The planned step raises."""


@dataclass(frozen=True)
class _Frugal:
    """Runs both steps while what the plain one saves is stored elsewhere."""

    model: nn.Module
    plain: Step
    planned: Step
    inputs: tuple[Any, ...]
    keywords: Mapping[str, Any]
    recorded: Recorded

    def has_equal_bits(self) -> bool:
        """Whether all results have the same bits; only numbers that stand for them are kept."""
        both = Both(self.model, _Digest.of, self.recorded, kept=digest)
        expected = self._expected(both, _Digest.of)
        return both.compared(expected, self._found(both, _Digest.of)) is None

    def difference(self, rounded: bool) -> Difference | None:
        """The difference of the results, which are copied elsewhere."""
        with copied_elsewhere() as copied:
            both = Both(self.model, _Digest.of, self.recorded, kept=copied)

            def run(results: Callable[..., Any]) -> Any:
                outputs: list[tuple[str, Tensor]] = []

                def loss(output: Any) -> Tensor:
                    leaves = enumerate(_tensors(output))
                    outputs.extend((f"output {i}", copied(leaf)) for i, leaf in leaves)
                    return _Digest.of(output, reads=False)

                left = results(both, loss)
                left.tensors.extend(outputs)
                return left

            expected = run(self._expected)
            if rounded and both.draws(expected):
                return None  # it draws other numbers by design, which nothing can be told by
            found = both.compared(expected, run(self._found), rounded=rounded)
            if found is None or not found.rounding:
                return found
            # Some kernels of CUDA give other bits every time: then nothing can be told by bits.
            again = both.compared(expected, run(self._expected))
            return None if again is not None else found

    def _expected(self, both: Both, loss: Callable[..., Tensor]) -> Any:
        with saved_elsewhere([*self.model.parameters(), *self.model.buffers()]):
            return both.run(
                lambda *inputs, **keywords: loss(self.plain(*inputs, **keywords)),
                self.inputs,
                self.keywords,
            )

    def _found(self, both: Both, loss: Callable[..., Tensor]) -> Any:
        try:
            return both.run(
                lambda *inputs, **keywords: loss(self.planned(*inputs, **keywords)),
                self.inputs,
                self.keywords,
            )
        except SchedsimError:
            raise
        except Exception as error:
            raise _PlannedFails from error


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
    model: nn.Module, step: Step, inputs: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Results:
    """The results of a step of a model that communicates; all state is restored."""
    with untouched(model), without_gradients(model):
        inputs, keywords = detached_copies((inputs, dict(keywords)))
        output = step(*inputs, **keywords)
        left: Results = {
            f"output {i}": leaf.detach().clone() for i, leaf in enumerate(_tensors(output))
        }
        loss = made_up_loss(output)
        del output
        run_backward(loss)
        for name, parameter in model.named_parameters():
            gradient = parameter.grad
            left[f"the gradient of {name}"] = (
                None if gradient is None else local(gradient).detach().clone()
            )
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
    def of(cls, output: Any, *, reads: bool = True) -> Tensor:
        _differentiable(output)
        leaves, own = _tensors(output), _own_loss(output)
        if own is not None:  # as in the loop, gradients of other outputs are not there
            leaves = [t if t is own else t.detach() for t in leaves]
        found: Tensor = cls.apply(reads, *leaves)  # type: ignore[no-untyped-call]  # torch's is untyped
        return found

    @staticmethod
    def forward(ctx: Any, reads: bool, *leaves: Tensor) -> Tensor:
        ctx.forms = [
            _OutputForm(
                tuple(t.shape), torch.empty_like(t, device="meta").stride(), t.dtype, t.device
            )
            for t in leaves
        ]
        ctx.set_materialize_grads(False)
        numbers = [int(digest(t)[-1]) for t in leaves if reads]
        return torch.tensor(float(hash(tuple(numbers)) >> 11), dtype=torch.float64)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        needs = ctx.needs_input_grad[1:]
        gradients = (
            made_up_gradient(form, seed) if needed else None
            for seed, (form, needed) in enumerate(zip(ctx.forms, needs, strict=True))
        )
        return (None, *gradients)


def noting(step: Callable[..., Any]) -> tuple[Callable[..., Any], list[SchedsimError]]:
    """`step`, and a list to which it adds what it refuses: a comparison only says that it fails."""
    refused: list[SchedsimError] = []

    def noted(*inputs: Any, **keywords: Any) -> Any:
        try:
            return step(*inputs, **keywords)
        except SchedsimError as error:
            refused.append(error)
            raise

    return noted, refused
