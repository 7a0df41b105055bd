"""Functions that Dynamo gives up, so that no backend is ever called with a graph of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from torch._dynamo.callback import CallbackArgs, callback_handler
from torch._dynamo.exc import Unsupported

Say = Callable[[CodeType, str], None]
"""Is called with the code that was given up, and with Dynamo's reason in a line."""


def tell_of_skipped(backend: Callable[..., Any], say: Say) -> None:
    """Have `say` called for each function that Dynamo was to compile by `backend` and gave up.

    Until the next `torch._dynamo.reset()`, which forgets that; a second call changes nothing.
    """
    known = any(getattr(end, "backend", None) is backend for end in callback_handler.end_callbacks)
    if not known:
        callback_handler.register_end_callback(_End(backend, say))


class _End:
    """What Dynamo calls when it has compiled a frame, or failed to."""

    def __init__(self, backend: Callable[..., Any], say: Say) -> None:
        self.backend, self._say = backend, say

    def __call__(self, about: CallbackArgs) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, Unsupported):
            return
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code.co_name != "_compile":
            frame = frame.f_back
        if frame is None or _innermost(frame.f_locals.get("compiler_fn")) is not self.backend:
            return
        code = frame.f_locals.get("code")
        if isinstance(code, CodeType):
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            self._say(code, lines[0] if lines else type(error).__name__)


def _innermost(compiler: Any) -> Any:
    """The function that a user gave as a backend, without torch's wrappers."""
    for _ in range(8):
        inner = getattr(compiler, "_torchdynamo_orig_backend", None)
        inner = inner or getattr(compiler, "compiler_fn", None)
        if inner is None:
            break
        compiler = inner
    return compiler
