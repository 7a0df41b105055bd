"""What a plan of a step depends on: forms of inputs, modes, what trains, torch's settings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ..autocasts import Autocast
from ..torch_private.global_settings import GlobalSettings
from ..torch_private.pytrees import tree_flatten


def step_key(model: nn.Module, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """The values that a plan for these inputs depends on; equal keys share a plan."""
    return (
        InputForm(inputs, keywords),
        *_modes_and_parameters(model),
        Autocast.now(),
        GlobalSettings.now(),
    )


class InputForm:
    """The form of a step's inputs: how they are nested, shapes, strides, types, constants."""

    def __init__(self, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        leaves, spec = tree_flatten((tuple(inputs), dict(keywords)))
        self.positional = inputs and tuple(type(item).__name__ for item in inputs)
        self.leaves = tuple(_leaf(leaf) for leaf in leaves)
        self.spec = str(spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, InputForm):
            return NotImplemented
        return (self.spec, self.leaves) == (other.spec, other.leaves)

    def __hash__(self) -> int:
        return hash((self.spec, self.leaves))


def _modes_and_parameters(model: nn.Module) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Which submodules train, and the forms of all parameters, in one order.

    Every step asks: `named_modules` and `named_parameters`, which make paths, take four times as
    long.
    """
    modes: list[bool] = []
    forms: list[Any] = []
    pending, seen = [model], {id(model)}
    while pending:
        module = pending.pop()
        modes.append(module.training)
        for p in module._parameters.values():
            if p is not None:
                forms.append((p.requires_grad, p.device.type, p.dtype))
        for child in module._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                pending.append(child)
    return tuple(modes), tuple(forms)


def _leaf(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return repr(leaf)
    strides = tuple(s for s, size in zip(leaf.stride(), leaf.shape, strict=True) if size != 1)
    return (tuple(leaf.shape), strides, leaf.dtype, leaf.device.type, leaf.requires_grad)


def key_digest(key: Any) -> str:
    """A short form of a key, which ranks compare."""
    form, *rest = key
    text = repr((form.spec, form.leaves, form.positional, rest))
    return hashlib.sha256(text.encode()).hexdigest()


def key_difference(known: Any, found: Any) -> str:
    """The first thing in which two keys differ, in words."""
    if known[0] != found[0]:
        pairs = zip(known[0].leaves, found[0].leaves, strict=False)
        for position, (mine, its) in enumerate(pairs):
            if mine != its:
                shapes = [leaf[0] if isinstance(leaf, tuple) else leaf for leaf in (its, mine)]
                if shapes[0] == shapes[1]:
                    return f"input {position} is {its} instead of {mine}"
                return f"input {position} has shape {shapes[0]} instead of {shapes[1]}"
        return "the inputs are nested otherwise"
    names = (
        "",
        "modules are in other modes",
        "other parameters train",
        "autocast differs",
        "settings of torch differ",
        "the inputs of another rank are of another form",
    )
    return next(n for n, a, b in zip(names, known, found, strict=False) if a != b)
