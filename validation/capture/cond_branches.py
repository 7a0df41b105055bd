"""`torch.cond` as one op of the graph: a number chooses which of two graphs runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch

from schedsim.errors import UnsupportedError

from ..torch_private.op_modes import OpOverload, schema_of

COND = torch.ops.higher_order.cond
"""The op of a trace; its arguments are the number, the two graphs, and the tensors they read."""


class CondBranches:
    """Runs one of two graphs, as a call of a program.

    Raises
    ------
    UnsupportedError
        A graph draws random numbers, which could not be drawn again, or writes in place.
    """

    def __init__(self, if_true: torch.fx.GraphModule, if_false: torch.fx.GraphModule) -> None:
        self.graphs = if_true, if_false
        for node in (node for graph in self.graphs for node in _nodes(graph)):
            if not isinstance(node.target, OpOverload):
                continue
            draws = torch.Tag.nondeterministic_seeded in node.target.tags
            if draws or schema_of(node.target).is_mutable:
                what = "draws random numbers" if draws else "writes in place"
                raise UnsupportedError(
                    f"a branch of torch.cond {what} ({node.target})",
                    hint="do it outside of the branches; or level='block'",
                )
        text = "\n".join(f"{node.format_node()}" for graph in self.graphs for node in _nodes(graph))
        # Equal graphs cost the same, and others do not.
        self.__name__ = f"cond_{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def __call__(self, chooses: Any, *given: Any) -> Any:
        return self.graphs[0 if chooses else 1](*given)

    def probe(self, _chooses: Any, *given: Any) -> Any:
        """Run both graphs, to measure what the larger one takes, and no less than its time."""
        self.graphs[0](*given)
        return self.graphs[1](*given)


def _nodes(graph_module: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """The nodes of a graph, and of the graphs that it holds."""
    for module in graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from module.graph.nodes
