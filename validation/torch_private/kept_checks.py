"""Ops that return nothing, as the check of a factorization: traces keep them, and as plain ops."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import torch

from .op_modes import OpOverload

_OF_TRACES = ("profiler", "prims", "inductor")
_aten = torch.ops.aten
_OF_SIZES = (
    _aten._assert_scalar.default,
    _aten._assert_tensor_metadata.default,
    _aten.sym_constrain_range.default,
    _aten.sym_constrain_range_for_size.default,
)
"""Ops that ask what a trace has settled: a step of other sizes or types has another graph."""


def returns_nothing(target: Any) -> bool:
    """Whether `target` is an op that is run for what it does: it raises, or it notes something."""
    if not isinstance(target, OpOverload) or target in _OF_SIZES:
        return False
    schema = target._schema
    return not schema.returns and not schema.is_mutable and target.namespace not in _OF_TRACES


@contextlib.contextmanager
def checks_kept() -> Iterator[None]:
    """Within it, traces keep ops that return nothing, as nodes without tokens.

    Of such ops torch keeps those that it knows by name. From torch 2.13 on it threads a token
    through some of them, as through the check of a factorization: an input and an output of the
    graph that stand for an order.
    """
    from torch._higher_order_ops import effects

    node: Any = torch.fx.Node
    module: Any = effects
    is_impure, effect_of = node.is_impure, getattr(module, "_get_effect", None)

    def keeps(self: torch.fx.Node, *args: Any, **options: Any) -> bool:
        return returns_nothing(self.target) or bool(is_impure(self, *args, **options))

    def unordered(op: Any) -> Any:
        return None if returns_nothing(op) or effect_of is None else effect_of(op)

    node.is_impure = keeps
    if effect_of is not None:
        module._get_effect = unordered
    try:
        yield
    finally:
        node.is_impure = is_impure
        if effect_of is not None:
            module._get_effect = effect_of


def is_python_assert(node: torch.fx.Node) -> bool:
    """Whether Dynamo has made `node` of an ``assert`` of Python."""
    code = (node.meta.get("stack_trace") or "").strip().splitlines()
    lines = [line.strip() for line in code if line.strip() and set(line.strip()) - set("~^ ")]
    return bool(lines) and re.search(r"(^|[:;]\s*)assert\b", lines[-1]) is not None
