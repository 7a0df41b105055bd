"""Graphs that no backward follows: inductor compiles them whole, as torch.compile does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..torch_private import inductor_calls as inductor
from ..user_warnings import warn_user
from .group import CompileWarning, reason


def needs_no_gradient(examples: Sequence[Any]) -> bool:
    """Whether a graph on these arguments saves nothing for a backward, whatever its ops are."""
    tensors = (it for it in examples if isinstance(it, torch.Tensor))
    return not torch.is_grad_enabled() or not any(it.requires_grad for it in tensors)


def compiled_without_backward(
    graph_module: torch.fx.GraphModule, examples: Sequence[Any]
) -> Callable[..., Any] | None:
    """A graph of Dynamo by inductor; ``None``, with a warning, where inductor cannot compile it.

    A schedule has nothing to choose there. Draws get the seeds that they get in torch.compile.
    """
    try:
        return inductor.compile_graph(graph_module, examples)
    except Exception as error:  # whatever a pass of inductor raises
        line = f"a graph that no backward follows runs uncompiled: {reason(error)}"
        warn_user(line, CompileWarning)
        return None
