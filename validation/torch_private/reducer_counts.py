"""Backward passes that DistributedDataParallel counts in the first step of a static graph.

With ``static_graph=True``, the wrapper counts how often the hook of each parameter is called until
its first step is over, and takes a gradient for complete after as many calls in every later step.
A pass of our own among these would be counted as well, and no later step would be averaged: the
wrapper, which waits for calls that do not come, says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch.autograd.graph import get_gradient_edge


def counts_passes(wrapper: Any) -> bool:
    """Whether `wrapper`, a DistributedDataParallel, counts each backward pass that runs now."""
    return bool(wrapper.static_graph) and not wrapper._static_graph_delay_allreduce_enqueued


@contextmanager
def noted_passes(wrapper: Any) -> Iterator[list[int]]:
    """A list that is empty as long as no backward has reached a parameter of `wrapper`."""
    reached: list[int] = []
    with ExitStack() as stack:
        for number, parameter in enumerate(wrapper.module.parameters()):
            if parameter.requires_grad:
                node = get_gradient_edge(parameter).node
                hook = node.register_hook(lambda *_, number=number: reached.append(number))
                stack.callback(hook.remove)
        yield reached
