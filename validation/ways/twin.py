"""A second model with the same parameters and buffers, whose modules may be changed."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..torch_private.module_tables import children_of


def twin(model: nn.Module) -> nn.Module:
    """`model` with modules of its own, and the same tensors.

    Parameters and buffers stay in the same tables, so that whatever replaces one (``.to``, loading)
    does so in both models. Other attributes are copied as they are now. O(modules).

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    >>> other = twin(model)
    >>> other[0] is model[0], other[0].weight is model[0].weight
    (False, True)
    """
    return _twin(model, {})


def _twin(module: nn.Module, known: dict[int, nn.Module]) -> nn.Module:
    if id(module) in known:
        return known[id(module)]
    made: nn.Module = object.__new__(type(module))
    known[id(module)] = made
    fields: dict[str, Any] = dict(module.__dict__)
    fields["_modules"] = {
        name: None if child is None else _twin(child, known)
        for name, child in children_of(module).items()
    }
    made.__dict__.update(fields)
    return made


def become(module: nn.Module, mixin: type, **fields: Any) -> None:
    """Change the class of `module`, part of a twin, to one with `mixin` before its own class."""
    own = type(module)
    module.__class__ = type(f"{mixin.__name__.strip('_')}{own.__name__}", (mixin, own), {})
    for name, value in fields.items():
        object.__setattr__(module, name, value)
