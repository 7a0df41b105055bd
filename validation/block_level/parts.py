"""A model as parts: the callables that the stages of a chain, or the blocks of a graph, run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from schedsim.errors import UnsupportedError


class OtherPath(UnsupportedError):
    """A step takes another path through the model than the one that was split into blocks."""


@dataclass
class StepInputs:
    """The inputs of one step, and what the parts of a split model leave for each other.

    Attributes
    ----------
    arguments, keywords
        Arguments with which the model is called.
    extra
        What the loss takes besides the model's output.
    side
        For each block of a split model, its arguments besides the activation.
    prefix_rng, prefix_python
        Random state, and what Python held, when the first part of a split model began.
    """

    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    extra: tuple[Any, ...] = ()
    side: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    prefix_rng: Any = None
    prefix_python: Any = None


Call = Callable[..., Any]
"""``call(step_inputs, *values)``: runs a part on the values that it reads."""


@dataclass(frozen=True)
class Part:
    """One part of a model.

    Attributes
    ----------
    name : str
    call : Call
    reads : tuple of int
        Values that the part reads: 0 is the input of the step, i + 1 the output of part i.
    modules : tuple of Module
        The modules that run in the part; their buffers are the part's.
    """

    name: str
    call: Call
    reads: tuple[int, ...]
    modules: tuple[nn.Module, ...]


def is_line(parts: Sequence[Part]) -> bool:
    """Whether every part reads the output of the part before it, and nothing else."""
    return all(part.reads == (i,) for i, part in enumerate(parts))


def joined(first: Part, second: Part) -> Part:
    """Both parts as one part; `second` must read the output of `first` alone."""

    def call(step: StepInputs, *values: Any) -> Any:
        return second.call(step, first.call(step, *values))

    return Part(f"{first.name}+{second.name}", call, first.reads, (*first.modules, *second.modules))


def sequential_parts(model: nn.Sequential) -> list[Part]:
    """One part for each item; plain `nn.Sequential` items are unfolded, subclasses are one item."""
    items = list(_unfolded(model, ""))
    parts = []
    for i, (name, module) in enumerate(items):
        call = _on_inputs(module) if i == 0 else _on_value(module)
        parts.append(Part(name, call, (i,), (module,)))
    return parts


def _unfolded(model: nn.Sequential, prefix: str) -> Any:
    for name, module in model.named_children():
        full = f"{prefix}{name}"
        if type(module) is nn.Sequential and len(module):
            yield from _unfolded(module, f"{full}.")
        else:
            yield f"{full}:{type(module).__name__}", module


def named_parts(blocks: Sequence[tuple[str, nn.Module, Sequence[str]]]) -> list[Part]:
    """Parts from ``(name, module, names read)``; ``"input"`` is the input of the step.

    Raises
    ------
    UnsupportedError
        A block reads a name that no block before it makes.
    """
    places = {"input": 0}
    parts = []
    for i, (name, module, reads) in enumerate(blocks):
        unknown = [read for read in reads if read not in places]
        if unknown or name in places:
            raise UnsupportedError(
                f"block {name!r} reads {unknown[0]!r}, which no block before it makes"
                if unknown
                else f"two blocks are called {name!r}",
                hint="blocks() gives (name, module, names read), in order",
            )
        if "input" in reads and len(reads) > 1:
            raise UnsupportedError(
                f"block {name!r} reads the input and another value",
                hint="pass the input on from the first block",
            )
        call = _on_inputs(module) if "input" in reads else _on_values(module)
        parts.append(Part(name, call, tuple(places[read] for read in reads), (module,)))
        places[name] = i + 1
    return parts


def _on_inputs(module: nn.Module) -> Call:
    return lambda step, *_: module(*step.arguments, **step.keywords)


def _on_value(module: nn.Module) -> Call:
    return lambda step, value: module(value)


def _on_values(module: nn.Module) -> Call:
    return lambda step, *values: module(*values)
