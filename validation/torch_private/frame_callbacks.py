"""What Dynamo calls when it begins and ends to compile a frame, by backend.

`torch._dynamo.reset()` forgets such callbacks; those of this module stay.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch._dynamo.eval_frame
from torch._dynamo.callback import CallbackArgs, callback_handler

from .compiled_models import compilers_within, options_in

Call = Callable[[FrameType], None]
"""Is called with the frame of Dynamo's function that compiles."""


def when_compiling(backend: Callable[..., Any], begins: Call, ends: Call) -> None:
    """Call `begins` and `ends` around each frame that Dynamo compiles for `backend`.

    A second call for the same backend changes nothing.
    """
    known = any(getattr(end, "backend", None) is backend for end in callback_handler.end_callbacks)
    if not known:
        callback_handler.start_callbacks = _Lasting(callback_handler.start_callbacks)
        callback_handler.end_callbacks = _Lasting(callback_handler.end_callbacks)
        callback_handler.register_start_callback(_OfBackend(backend, begins))
        callback_handler.register_end_callback(_OfBackend(backend, ends))


def options_of(frame: FrameType) -> Mapping[str, Any]:
    """The options that a user gave `torch.compile` for what is compiled in `frame`."""
    return options_in(compilers_within(frame.f_locals.get("compiler_fn"))) or {}


def is_for_one_graph(frame: FrameType) -> bool:
    """Whether what is compiled in `frame` raises where its graph would break (``fullgraph``)."""
    return bool(frame.f_locals.get("one_graph"))


def when_call_ends(call: Callable[[], None]) -> bool:
    """Have `call` called when the outermost compiled call ends; whether there is such a call."""
    frame: FrameType | None = sys._getframe()
    found = None
    while frame is not None:
        if frame.f_code.co_filename == torch._dynamo.eval_frame.__file__:
            cleanups = frame.f_locals.get("cleanups")
            found = cleanups if isinstance(cleanups, list) else found
        frame = frame.f_back
    if found is not None:
        found.append(call)
    return found is not None


class _Lasting(list[Any]):
    """Callbacks, of which those of this module are not forgotten."""

    def clear(self) -> None:
        self[:] = [callback for callback in self if isinstance(callback, _OfBackend)]


class _OfBackend:
    """A callback that looks for what backend a frame is compiled."""

    def __init__(self, backend: Callable[..., Any], call: Call) -> None:
        self.backend, self._call = backend, call

    def __call__(self, about: CallbackArgs) -> None:
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code.co_name != "_compile":
            frame = frame.f_back
        if frame is not None and _innermost(frame.f_locals.get("compiler_fn")) is self.backend:
            self._call(frame)


def _innermost(compiler: Any) -> Any:
    """The function that a user gave as a backend, without torch's wrappers."""
    return compilers_within(compiler)[-1]
