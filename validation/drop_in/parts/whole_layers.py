"""Recurrent layers in a graph of Dynamo: one op each, as in a step that is captured.

By its default settings Dynamo gives up a function that calls `nn.LSTM`, `nn.GRU` or `nn.RNN`. When
it is allowed to go on, it leaves one call of torch's function in the graph. A trace of that call
would give the ops of every time step, without the dropout between layers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from ...capture.gru_cells import gru_cell_as_op
from ...capture.recurrent import KINDS, layer_as_op
from ...torch_private.fake_tensors import is_traced
from ...torch_private.recurrent_functions import own_function


def keep_layers_whole(graph_module: torch.fx.GraphModule) -> None:
    """Have recurrent layers and GRU cells on the CPU call one op each in a graph."""
    kinds = {own_function(kind): kind for kind in (*KINDS, "gru_cell")}
    changed = False
    for node in graph_module.graph.nodes:
        if node.op == "call_function" and _is_builtin(node.target) and node.target in kinds:
            made = node.meta.get("example_value")
            one = made[0] if isinstance(made, tuple | list) else made
            if isinstance(one, torch.Tensor) and one.device.type == "cpu":
                node.target = _whole(kinds[node.target])
                changed = True
    if changed:
        graph_module.recompile()


def _is_builtin(target: Any) -> bool:
    return type(target) is type(len)


@cache
def _whole(kind: str) -> Callable[..., Any]:
    function: Callable[..., Any] = gru_cell_as_op if kind == "gru_cell" else layer_as_op(kind)

    def run(*arguments: Any) -> Any:
        # The graph as it is runs where autocast forbids a trace of it.
        as_it_is = torch.is_autocast_enabled("cpu") and not is_traced(arguments[0])
        return (own_function(kind) if as_it_is else function)(*arguments)

    run.__name__ = kind  # the name of the op in the program
    return run
