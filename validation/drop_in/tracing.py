"""Settings for calls in which Dynamo may trace a model in place, and its code under a new name."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from types import CodeType
from typing import Any

from torch import nn

from ..capture.eager_paths import eager_paths_in_parts
from ..capture.gru_cells import has_gru_cells, whole_gru_gates
from ..capture.recurrent import whole_recurrence
from ..torch_private.dynamo_settings import (
    GUARDS,
    break_at_packed_sequences,
    trace_settings,
    without_logging,
)
from ..torch_private.grouped_products import grouped_products
from ..torch_private.replaced_data import break_at_replaced_data

_NUMBERS = count()
"""Of the functions that Dynamo traces: each has a name of its own."""


class Tracing:
    """The settings that a model needs.

    Parameters
    ----------
    model
        Looked at once; it is not held.
    is_eager
        Whether parts run the kernels of the eager step: Inductor has the paths of compiled steps.
    """

    def __init__(self, model: nn.Module, *, is_eager: bool) -> None:
        self._has_whole_recurrence = _has_recurrence_on_cpu(model)
        self._has_gru_cells, self._is_eager = has_gru_cells(model), is_eager
        self._counters = Counters(model)
        self._lengths = _lengths(model)
        self._numbers = numbers_of(model)

    def grown(self, model: nn.Module) -> str:
        """What modules of `model` hold that has grown since it got its budget, for a line."""
        found = _lengths(model)
        return ", ".join(
            f"`{'.'.join(filter(None, key))}` has grown from {before} to {found[key]}"
            for key, before in self._lengths.items()
            if found.get(key, 0) > before
        )

    def counted(self, model: nn.Module) -> str:
        """What numbers modules of `model` hold that have changed since, for a line."""
        return changed_numbers(self._numbers, numbers_of(model))

    def sees(self, model: nn.Module) -> None:
        """Dynamo has traced `model`, as it is now."""
        self._counters.see(model)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Around a call in which Dynamo may trace."""
        break_at_packed_sequences()
        with ExitStack() as stack:
            stack.callback(break_at_replaced_data, break_at_replaced_data(True))
            # A hook that is registered later must become part of the step, and so on.
            settings: dict[str, Any] = {
                **GUARDS,
                "use_numpy_random_stream": True,
                # No graph for each bucket of DistributedDataParallel: gradients come early anyway,
                # and what passes between graphs would be kept.
                "optimize_ddp": False,
            }
            # A message that a library prints once (transformers, about the loss) need not break a
            # graph: the plain step, with which the first step is compared, prints it.
            if self._counters.change:
                # One more graph takes a number in the place of a constant, and serves all values.
                settings["allow_unspec_int_on_nn_module"] = True
            settings |= without_logging(("warning_once", "info_once"))
            if self._has_whole_recurrence:
                settings["allow_rnn"] = True
                stack.enter_context(whole_recurrence())
            if self._has_gru_cells:
                stack.enter_context(whole_gru_gates())
            if self._is_eager:
                stack.enter_context(eager_paths_in_parts())
                stack.enter_context(grouped_products())
            stack.enter_context(trace_settings(settings))
            yield


class Counters:
    """Whether modules of a model hold whole numbers that change from trace to trace.

    Dynamo takes such numbers for constants, and would trace a model that counts its forwards in
    each step. As numbers that a graph is given, all of them would be open where a block of a model
    is traced by itself, which makes slower graphs: so they are so only where they change.

    Attributes
    ----------
    change
        Whether any has changed.
    """

    def __init__(self, model: nn.Module) -> None:
        self.change, self._seen = False, _whole_numbers(model)

    def see(self, model: nn.Module) -> None:
        """Look at the model, which is traced."""
        if not self.change:
            before, self._seen = self._seen, _whole_numbers(model)
            self.change = before != self._seen


def _whole_numbers(model: nn.Module) -> dict[tuple[str, str], int]:
    return {
        (path, name): value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if type(value) is int
    }


Numbers = dict[tuple[str, str], int | float]
"""Path and attribute of a module -> the number that it is."""


def numbers_of(model: nn.Module) -> Numbers:
    """The numbers that modules of `model` hold. O(attributes)."""
    return {
        (path, name): value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if type(value) in (int, float)
    }


def changed_numbers(before: Numbers, now: Numbers) -> str:
    """Those that have changed, in words, with what to write; empty where none has.

    Examples
    --------
    >>> changed_numbers({("a", "t"): 0.5, ("", "n"): 1}, {("a", "t"): 0.7, ("", "n"): 1})
    '`a.t` has gone from 0.5 to 0.7: keep it in a buffer (register_buffer), and write add_ or fill_'
    """
    changed = [
        f"`{'.'.join(filter(None, key))}` has gone from {value} to {now[key]}"
        for key, value in before.items()
        if key in now and now[key] != value
    ]
    if not changed:
        return ""
    what = "them in buffers" if len(changed) > 1 else "it in a buffer"
    return f"{', '.join(changed[:4])}: keep {what} (register_buffer), and write add_ or fill_"


def _lengths(model: nn.Module) -> dict[tuple[str, str], int]:
    """Path and attribute -> the length of the list or table that it is."""
    return {
        (path, name): len(value)
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, list | dict | deque | set) and not name.startswith("_")
    }


def _has_recurrence_on_cpu(model: nn.Module) -> bool:
    """Whether Dynamo must take recurrent layers as one op each, or would refuse them."""
    layers = [m for m in model.modules() if isinstance(m, nn.RNNBase)]
    return bool(layers) and all(p.device.type == "cpu" for m in layers for p in m.parameters())


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` in a frame that is not torch's own: Dynamo steps over those."""

    def run(*inputs: Any, **keywords: Any) -> Any:
        return function(*inputs, **keywords)

    # Dynamo keeps traces by code object, and what sizes a function has seen by its name and line:
    # without copies, models would share a trace, and of equal names, the second model of a process
    # would be traced for open sizes at once.
    run.__code__ = run.__code__.replace(co_name=f"run_{next(_NUMBERS)}")
    return run


def is_inlined(code: CodeType) -> bool:
    """Whether `code` is of such a function: as it is, or where Dynamo resumes it."""
    return code.co_filename == __file__ and "run" in code.co_name


def begins_call(code: CodeType) -> bool:
    """Whether `code` is of such a function as it is: nothing has run in the call before it."""
    return code.co_filename == __file__ and code.co_name.startswith("run_")
