"""Results of messages that tensor parallelism waits for at their first use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .storage_refs import share_of, spread_as


def arrived(tensor: Tensor) -> Tensor:
    """`tensor` once its message has come, without the wrapper that waits for it.

    The wrapper has no memory of its own: views of its content could not be found by their storage.
    """
    if type(tensor) is Tensor or not torch.distributed.is_available():
        return tensor
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    share = share_of(tensor)
    if not isinstance(share, AsyncCollectiveTensor):
        return tensor
    content: Tensor = share.trigger_wait()  # type: ignore[no-untyped-call]  # torch's
    return content if share is tensor else spread_as(tensor)(content)


def waits(tensor: Any) -> bool:
    """Whether `tensor` is such a result, or is spread over ranks with one as this rank's share."""
    return isinstance(tensor, Tensor) and arrived(tensor) is not tensor


def arrived_with_gradient(tensor: Any) -> Any:
    """`tensor` once its message has come, with the same gradient.

    AOTAutograd loses the gradient of an argument that is such a result.
    """
    if not waits(tensor):
        return tensor
    if not tensor.requires_grad or not torch.is_grad_enabled():
        return arrived(tensor)
    return _Arrived.apply(tensor)  # type: ignore[no-untyped-call]  # torch's is untyped


def examples_arrived(graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """The `inputs` of a graph of Dynamo, as `arrived_with_gradient` gives them to it.

    Where they are such results, they are those of the trace, whose sizes are known to be fixed.
    """
    nodes = (node for node in graph_module.graph.nodes if node.op == "placeholder")
    return [
        _as_arrived(node.meta["example_value"]) if waits(given) else given
        for node, given in zip(nodes, inputs, strict=True)
    ]


def _as_arrived(fake: Any) -> Any:
    share = share_of(fake)
    content = getattr(share, "elem", share)
    found = content if share is fake else spread_as(fake)(content)
    return found.detach().requires_grad_(fake.requires_grad)


class _Arrived(torch.autograd.Function):
    """The content of a result, whose gradient is the result's."""

    @staticmethod
    def forward(_ctx: Any, tensor: Tensor) -> Tensor:
        return arrived(tensor).detach()  # an alias: autograd notes the call on it

    @staticmethod
    def backward(_ctx: Any, *gradients: Any) -> Any:
        return gradients[0]
