"""Sizes that differ from step to step, as formulas over the sizes that a trace left open."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from .program import Program, Value

_SPACE = {"math": math, "operator": operator, "torch": torch, "max": max, "min": min}


class VaryingSize:
    """A number that follows from sizes which a trace left open: ``4*s0*s1``.

    Two are equal where their texts are, so that sizes which agree by accident in one step are not.

    Parameters
    ----------
    text
        Python source over names of open sizes; equal formulas have equal texts.

    Examples
    --------
    >>> size = VaryingSize("4*s0*s1")
    >>> size.at({"s0": 2, "s1": 3}), sorted(size.names)
    (24, ['s0', 's1'])
    """

    __slots__ = ("_code", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._code = compile(text, "<size>", "eval")

    @property
    def names(self) -> frozenset[str]:
        """The open sizes that it follows from."""
        tree = ast.walk(ast.parse(self.text))
        return frozenset(n.id for n in tree if isinstance(n, ast.Name)) - _SPACE.keys()

    def at(self, values: Mapping[str, int]) -> Any:
        """The number where the open sizes are `values`."""
        return eval(self._code, dict(_SPACE), dict(values))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VaryingSize) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return self.text


def product(sizes: Sequence[Any]) -> Any:
    """The product of sizes, some of which may be open; an ``int`` where none is."""
    if not any(isinstance(size, VaryingSize) for size in sizes):
        return math.prod(sizes)
    return VaryingSize("*".join(f"({size})" for size in sizes))


def broadcast(shapes: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """The shape that `shapes`, which fit together, are broadcast to."""
    found: list[Any] = [1] * max(map(len, shapes))
    for shape in shapes:
        for dim, size in enumerate(reversed(shape)):
            if size != 1:
                found[-1 - dim] = size
    return tuple(found)


def open_sizes(program: Program) -> dict[VaryingSize, None]:
    """All that are in `program`, each once."""
    found: dict[VaryingSize, None] = {}
    for tree in (
        [(value.shape, value.stride) for value in program.values],
        [storage.size_bytes for storage in program.storages],
        [(call.args, call.kwargs, call.lean and call.lean[1]) for call in program.calls],
    ):
        found.update(dict.fromkeys(_found(tree)))
    return found


def _found(tree: Any) -> Iterator[VaryingSize]:
    if isinstance(tree, VaryingSize):
        yield tree
    elif isinstance(tree, dict):
        yield from _found(list(tree.values()))
    elif isinstance(tree, tuple | list):
        for item in tree:
            yield from _found(item)


def settled(tree: Any, values: Mapping[VaryingSize, Any]) -> Any:
    """Nested tuples, lists and dicts with numbers for all open sizes in them."""
    if isinstance(tree, VaryingSize):
        return values[tree]
    if isinstance(tree, dict):
        return {key: settled(item, values) for key, item in tree.items()}
    if isinstance(tree, list):
        return [settled(item, values) for item in tree]
    if type(tree) is tuple:
        return tuple(settled(item, values) for item in tree)
    return tree


def settled_value(program: Program, number: int, values: Mapping[str, int]) -> Value:
    """The value `number` of `program` at sizes `values`."""
    value = program.values[number]
    known = {size: size.at(values) for size in _found((value.shape, value.stride))}
    return replace(value, shape=settled(value.shape, known), stride=settled(value.stride, known))


def settled_program(program: Program, values: Mapping[str, int]) -> Program:
    """`program` at sizes `values`; O(its size)."""
    known = {size: size.at(values) for size in open_sizes(program)}
    if not known:
        return program
    own = {field.name: getattr(program, field.name) for field in fields(program)}
    own["values"] = [
        replace(v, shape=settled(v.shape, known), stride=settled(v.stride, known))
        for v in program.values
    ]
    own["storages"] = [
        replace(s, size_bytes=settled(s.size_bytes, known)) for s in program.storages
    ]
    own["calls"] = [
        replace(
            call,
            args=settled(call.args, known),
            kwargs=settled(call.kwargs, known),
            lean=settled(call.lean, known),
        )
        for call in program.calls
    ]
    return Program(**own)


def numbers_of(
    sizes: Iterable[Any], names: Sequence[str]
) -> Callable[[Sequence[int]], tuple[Any, ...]]:
    """From the open sizes called `names`, in order, to the numbers that `sizes` become.

    Examples
    --------
    >>> numbers_of([VaryingSize("s0*2"), 7], ["s0", "s1"])((3, 4))
    (6, 7)
    """
    texts = "".join(f"{size}, " for size in sizes)
    unpack = "".join(f"{name}, " for name in names)
    source = f"def numbers(given):\n    {unpack or '()'} = given\n    return ({texts})\n"
    space = dict(_SPACE)
    exec(compile(source, "<sizes>", "exec"), space)
    found: Callable[[Sequence[int]], tuple[Any, ...]] = space["numbers"]  # type: ignore[assignment]
    return found
