"""Two ops of one signature cost the same: function, layout of tensors, other arguments."""

from __future__ import annotations

from typing import Any

from ..capture.program import Call, Program, map_refs
from ..torch_private.op_modes import schema_of
from .lazy_bits import lazy_bits


def signature(program: Program, call: Call) -> str:
    """A text that is equal for equal work: ``aten.mm.default((float32[8, 4]/4,1@cpu), ...)``."""

    def layout(value: int) -> str:
        v = program.values[value]
        dtype = str(v.dtype).removeprefix("torch.")
        stride = ",".join(map(str, v.stride))
        return f"{dtype}{lazy_bits(program, value)}{list(v.shape)}/{stride}@{v.device.type}"

    args = _text(map_refs(call.args, layout))
    kwargs = _text(map_refs(call.kwargs, layout))
    return f"{target_name(call)}{args}{kwargs}"


def target_name(call: Call) -> str:
    """Name of the function."""
    schema = schema_of(call.target)
    if schema is None:
        return str(getattr(call.target, "__name__", call.target))
    return f"{schema.name}.{schema.overload_name or 'default'}"


def _text(tree: Any) -> str:
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key}={_text(item)}" for key, item in tree.items()) + "}"
    if isinstance(tree, tuple | list):
        return "(" + ", ".join(_text(item) for item in tree) + ")"
    return str(tree)
