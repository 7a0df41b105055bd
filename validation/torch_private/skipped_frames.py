"""Functions that Dynamo gives up, so that no backend is ever called with a graph of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any

import torch._dynamo
from torch._dynamo.exc import Unsupported
from torch._dynamo.utils import counters


def breaks_so_far() -> dict[str, int]:
    """Reason -> number of graphs that broke for it."""
    return dict(counters["graph_break"])


def skipped_code(
    frame: FrameType, before: Mapping[str, int] | None = None
) -> tuple[CodeType, str] | None:
    """The code that Dynamo gives up where a compilation ends, and its reason in a line.

    Parameters
    ----------
    frame
        Of Dynamo's function that compiles.
    before
        The `breaks_so_far` where the compilation began. With them, code counts whose graph broke,
        too: behind the break, functions of torch's own modules run as they are, without an error.
    """
    error, code = sys.exc_info()[1], frame.f_locals.get("code")
    if not isinstance(code, CodeType):
        return None
    if isinstance(error, Unsupported):
        return code, _first_line(str(error)) or type(error).__name__
    if before is None or error is not None:
        return None
    new = [why for why, num in breaks_so_far().items() if num > before.get(why, 0)]
    return (code, _first_line(new[-1]) or "its graph breaks") if new else None


def given_to(frame: FrameType) -> list[Any]:
    """What the function is given that Dynamo compiles in `frame`."""
    found = frame.f_locals.get("locals")
    return list(found.values()) if isinstance(found, Mapping) else []


def name_of(code: CodeType) -> str:
    """What a user calls `code`: Dynamo has a function around a model that is torch's own module."""
    own = code.co_filename.startswith(os.path.dirname(torch._dynamo.__file__))
    return "the model" if own else code.co_qualname


def _first_line(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line), "")
