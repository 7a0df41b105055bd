"""Functions that Dynamo gives up, so that no backend is ever called with a graph of them."""

from __future__ import annotations

import sys
from types import CodeType, FrameType

from torch._dynamo.exc import Unsupported


def skipped_code(frame: FrameType) -> tuple[CodeType, str] | None:
    """The code that Dynamo gives up where a compilation ends, and its reason in a line.

    Parameters
    ----------
    frame
        Of Dynamo's function that compiles.
    """
    error, code = sys.exc_info()[1], frame.f_locals.get("code")
    if not isinstance(error, Unsupported) or not isinstance(code, CodeType):
        return None
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return code, lines[0] if lines else type(error).__name__
