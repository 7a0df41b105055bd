"""Custom ops that write into their arguments, as calls that return what they have written."""

from __future__ import annotations

from typing import Any

import torch

from ..torch_private.op_modes import OpOverload, schema_name

_FUNCTIONAL = tuple(
    getattr(torch.ops.higher_order, name)
    for name in ("auto_functionalized", "auto_functionalized_v2")
    if hasattr(torch.ops.higher_order, name)
)
"""What a trace has in the place of such an op."""


class WritingOp:
    """Runs such an op on copies of what it writes, as a call of a program.

    So it may run again; the copies are new tensors, which the graph counts.

    Attributes
    ----------
    op
        The op that writes.
    """

    def __init__(self, functional: Any, op: OpOverload) -> None:
        self._functional, self.op = functional, op
        self.namespace = op.namespace
        self.__name__ = f"written_by_{schema_name(op)}".replace("::", "_").replace(".", "_")

    @staticmethod
    def of(node: torch.fx.Node) -> WritingOp | None:
        """The op that `node` of a trace stands for; ``None`` if it is no such node."""
        if node.target not in _FUNCTIONAL or not isinstance(node.args[0], OpOverload):
            return None
        return WritingOp(node.target, node.args[0])

    def __call__(self, **given: Any) -> Any:
        return self._functional(self.op, **given)
