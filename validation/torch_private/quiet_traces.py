"""The contexts of a trace: no logs, draws that nothing reads, backwards as they run."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ..autocasts import backward_autocast


@contextlib.contextmanager
def backward_as_it_runs() -> Iterator[None]:
    """AOTAutograd traces backwards in the `backward_autocast`, not in that of the forward."""
    autocast, autograd, config = backward_autocast(), torch.autograd, torch._functorch.config
    grad: Any = autograd.grad

    def casting(*arguments: Any, **options: Any) -> Any:
        with autocast.entered():
            return grad(*arguments, **options)

    with config.patch(backward_pass_autocast="off"):  # a list of types here breaks torch's log
        autograd.grad = casting if autocast.devices else grad
        try:
            yield
        finally:
            autograd.grad = grad


@contextlib.contextmanager
def exporting(mode: FakeTensorMode) -> Iterator[None]:
    """The context of an export of a joint graph, inside the export's own stack of contexts."""
    from torch._guards import TracingContext, tracing
    from torch.fx._lazy_graph_module import _use_lazy_graph_module

    with (
        quiet_loggers(),
        _use_lazy_graph_module(True),  # hardly any of these graphs is asked for its code
        mode,
        tracing(TracingContext(mode)),
        warnings.catch_warnings(),
        # Backward nodes take the names of modules from their forward ones.
        torch.fx.traceback.preserve_node_meta(),
    ):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def draws_kept() -> Iterator[None]:
    """Keep random ops whose numbers nothing reads: they leave the generator elsewhere.

    Tracing drops them unless it is told that inductor draws the numbers of eager mode.
    """
    from torch._inductor import config

    with config.patch(fallback_random=True):
        yield


@contextlib.contextmanager
def quiet_loggers() -> Iterator[None]:
    """No logs while tracing: an error in a trace is raised, and need not be logged too."""
    loggers = [logging.getLogger(name) for name in ("torch._dynamo", "torch._subclasses")]
    loggers.append(logging.getLogger("torch._subclasses.fake_tensor"))
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
