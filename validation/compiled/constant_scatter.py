"""Scatters of a number into a constant as loops that other ops can join."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten


def scatters_as_loops(graph: torch.fx.Graph, mode: Any) -> None:
    """Write each scatter of one number per line into a constant as a comparison of positions.

    The backward of a cross-entropy puts -1 at the target of each row of zeros. As a scatter, the
    rows are a tensor of the size of the logits; as a comparison, they are a part of the loop that
    reads them. Inductor does the same where it compiles whole steps. O(size of the graph).

    Parameters
    ----------
    graph
        A traced op, changed in place.
    mode
        The mode of its fake tensors.
    """

    def call(target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        node = graph.call_function(target, args, kwargs)
        given = torch.fx.map_arg((args, kwargs), lambda n: n.meta["val"])
        with mode:
            node.meta["val"] = target(*given[0], **given[1])
        return node

    for node in list(graph.nodes):
        if node.target is not aten.scatter.value or node.kwargs:
            continue
        base, dim, index, number = node.args
        if base.target is not aten.full.default:
            continue
        made, places = node.meta["val"], index.meta["val"]
        shape = list(made.shape)
        dim %= len(shape)
        lines = [1 if d == dim else size for d, size in enumerate(shape)]
        if list(places.shape) != lines:
            continue
        of = {"dtype": made.dtype, "device": made.device}
        with graph.inserting_before(node):
            positions = call(
                torch.ops.prims.iota.default,
                shape[dim],
                start=0,
                step=1,
                dtype=torch.int64,
                device=made.device,
                requires_grad=False,
            )
            along = [size if d == dim else 1 for d, size in enumerate(shape)]
            hit = call(aten.eq.Tensor, index, call(aten.view.default, positions, along))
            there = call(aten.scalar_tensor.default, number, **of)
            elsewhere = call(aten.scalar_tensor.default, base.args[1], **of)
            looped = call(aten.where.self, hit, there, elsewhere)
        node.replace_all_uses_with(looped)
        graph.erase_node(node)
        if not base.users:
            graph.erase_node(base)
