"""A joint graph as calls on values, and values on storages: what the graph counts and runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

aten = torch.ops.aten

# These ops copy the whole storage under their first argument, also what it does not show.
COPIES_OF_STORAGES = (
    aten.copy.default,
    aten.slice_scatter.default,
    aten.select_scatter.default,
    aten.diagonal_scatter.default,
    aten.as_strided_scatter.default,
)


class Ref(NamedTuple):
    """A value among the arguments of a call."""

    value: int


@dataclass(slots=True)
class Value:
    """A tensor of the step.

    Attributes
    ----------
    storage
        Index of its storage; views share their base's.
    shape, stride, dtype, device
        As in PyTorch.
    call
        The call that makes it; -1 if it exists when the step starts.
    position
        Position among the outputs of the call.
    """

    storage: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    call: int = -1
    position: int = 0


@dataclass(slots=True)
class Storage:
    """The bytes behind one or more values.

    Attributes
    ----------
    size_bytes
        Bytes on the graph's device; 0 for a storage elsewhere.
    kind
        ``static`` (parameters, buffers, constants), ``input``, ``tangent`` or ``computed``.
    call
        The call that allocates it; -1 if it exists when the step starts.
    """

    size_bytes: int
    kind: str
    call: int = -1


@dataclass(slots=True)
class Call:
    """One function call.

    Attributes
    ----------
    name
        A readable and unique name.
    target
        The op.
    args, kwargs
        Arguments, with a `Ref` in place of each tensor.
    outputs
        The value of each output; -1 for one that is no tensor.
    is_tuple
        Whether the function returns a tuple or list.
    is_view
        Whether its outputs share its input's storage, so that it costs nothing.
    phase
        ``forward``, ``loss`` or ``backward``.
    once
        Whether it may not run twice.
    random
        Whether it draws random numbers.
    optional
        Positions of outputs that are computed only if a later call reads them.
    lean
        Target and arguments of the form without the optional outputs.
    takes_over
        Value of an argument whose storage the output takes over in the run that reads it last, -1
        for none; `overwriting` is then called, with that value first.
    over
        Position of the output that takes over.
    is_gradient_sum
        Whether the autograd engine made it, to add up the gradients of one tensor.
    tokens
        Calls that must have run before, although no tensor says so.
    module
        Path of the module that it comes from; empty if unknown.
    """

    name: str
    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[int] = field(default_factory=list)
    is_tuple: bool = False
    is_view: bool = False
    phase: str = "forward"
    once: bool = False
    random: bool = False
    optional: tuple[int, ...] = ()
    lean: tuple[Callable[..., Any], tuple[Any, ...]] | None = None
    takes_over: int = -1
    over: int = 0
    overwriting: Callable[..., Any] | None = None
    is_gradient_sum: bool = False
    tokens: tuple[int, ...] = ()
    module: str = ""


@dataclass(slots=True)
class Program:
    """A whole step as calls.

    Attributes
    ----------
    values, storages, calls
        Calls stand in the order in which the step was traced.
    parameters, buffers
        Name in the model -> value.
    inputs
        Position among the tensors of the inputs -> value.
    constants
        Value -> a tensor that the model holds outside of parameters and buffers.
    outputs
        Values that the forward half returns: the loss, or all outputs of a part of a step.
    tangents
        Values of the gradients of outputs, which the backward half gets.
    held
        Outputs and tangents that other code holds to the end of the step.
    seed
        The call that turns outputs into their gradients: the end of the forward.
    gradients
        Name of a parameter -> value of its gradient.
    input_gradients
        Position of an input -> value of its gradient.
    sums
        Name of a parameter -> value of the sum to which the step adds its gradient, in place of
        giving it away.
    doubted
        Buffers that code behind the forward half may write: their contents in the backward half are
        not known.
    """

    values: list[Value] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    parameters: dict[str, int] = field(default_factory=dict)
    buffers: dict[str, int] = field(default_factory=dict)
    inputs: dict[int, int] = field(default_factory=dict)
    constants: dict[int, torch.Tensor] = field(default_factory=dict)
    outputs: list[int] = field(default_factory=list)
    tangents: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    seed: int = -1
    gradients: dict[str, int] = field(default_factory=dict)
    input_gradients: dict[int, int] = field(default_factory=dict)
    sums: dict[str, int] = field(default_factory=dict)
    doubted: frozenset[int] = frozenset()

    @property
    def loss(self) -> int:
        """The value of the loss of a whole step."""
        (loss,) = self.outputs
        return loss

    @property
    def tangent(self) -> int:
        """The value of the gradient of the loss of a whole step."""
        (tangent,) = self.tangents
        return tangent

    def reads_doubted(self, call: Call) -> bool:
        """Whether `call` reads what may be something else in the backward half."""
        return self.reads_any(call, self.doubted)

    def reads_any(self, call: Call, values: Collection[int]) -> bool:
        """Whether `call` reads a tensor of `values`, or another view of its storage."""
        if not values:
            return False
        storages = {self.values[v].storage for v in values}
        return any(self.values[v].storage in storages for v in refs((call.args, call.kwargs)))

    def append(self, call: Call) -> None:
        """Add `call` at the end, as the maker of its outputs; views make no storage."""
        self.calls.append(call)
        for position, v in enumerate(call.outputs):
            if v >= 0:
                value = self.values[v]
                value.call, value.position = len(self.calls) - 1, position
                if not call.is_view:
                    self.storages[value.storage].call = value.call

    def base_reads(self, call: Call) -> list[int]:
        """Storages, not resident in any case, that `call` reads, in order of appearance."""
        found: dict[int, None] = {}
        for value in refs((call.args, call.kwargs)):
            storage = self.values[value].storage
            if self.storages[storage].kind != "static":
                found.setdefault(storage)
        return list(found)


def same_strides(shape: Sequence[int], one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two tensors of `shape` are laid out alike, in all dimensions where it matters."""
    pairs = zip(shape, one, other, strict=True)
    return all(size == 1 or mine == its for size, mine, its in pairs)


def empty_of(value: Value) -> torch.Tensor:
    """A tensor of the form of `value`, of unknown content; a fake one in a mode of fakes."""
    return torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=value.device)


def refs(tree: Any) -> Iterator[int]:
    """The values that nested arguments mention, in order."""
    if isinstance(tree, Ref):
        yield tree.value
    elif isinstance(tree, tuple | list):
        for item in tree:
            yield from refs(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from refs(item)


def map_refs(tree: Any, change: Callable[[int], Any]) -> Any:
    """Nested arguments with every reference replaced by ``change(value)``."""
    if isinstance(tree, Ref):
        return change(tree.value)
    if isinstance(tree, tuple):
        return tuple(map_refs(item, change) for item in tree)
    if isinstance(tree, list):
        return [map_refs(item, change) for item in tree]
    if isinstance(tree, dict):
        return {key: map_refs(item, change) for key, item in tree.items()}
    return tree


def generator_states_bytes(program: Program, device: str) -> int:
    """Most bytes of the generator's states that repeats of the random ops of `program` keep.

    Only those of a CPU's generator are tensors of the allocator. An op that runs once, as what
    draws the seeds of a compiled step, is never replayed.
    """
    num_random = sum(call.random and not call.once for call in program.calls)
    if device != "cpu" or not num_random:
        return 0
    # One additional state is put aside while a repeat runs.
    return (num_random + 1) * torch.get_rng_state().numel()
