"""Errors that a user's model or loss raises, told apart from faults of schedsim."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from types import FrameType

_LIBRARIES = tuple(
    Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)

_WATCHERS = ("__torch_dispatch__", "__torch_function__")
"""Functions of schedsim that PyTorch calls for each op of a model, which they run."""

_ERRORS_OF_OPS = (RuntimeError, IndexError, ValueError)
"""What PyTorch's ops raise on inputs that they do not take."""


def place_in_model(error: BaseException) -> str | None:
    """The line of a user's model or loss that has raised `error`, as ``models.py:9``.

    What is raised below a frame of schedsim is the user's where that frame has called a module or
    function of ``torch.nn``, or a file that belongs to no library, and schedsim has only watched
    the ops behind it.

    Returns
    -------
    str or None
        The innermost line outside of PyTorch; empty where its layers alone have run; ``None`` where
        schedsim, or a library that it has called, has raised the error.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames or (_is_watcher(frames[-1][0]) and not isinstance(error, _ERRORS_OF_OPS)):
        return None
    frames = [(frame, line) for frame, line in frames if not _is_watcher(frame)]
    ours = [k for k, (frame, _) in enumerate(frames) if _is_of(frame, "schedsim")]
    if not ours or not _is_of(frames[ours[-1]][0], "schedsim.validation"):
        return None  # no code but that calls models
    below = frames[ours[-1] + 1 :]
    if not below or not (_is_of(below[0][0], "torch.nn") or _is_users(below[0][0])):
        return None
    own = [(frame, line) for frame, line in below if not _is_of(frame, "torch")]
    return f"{Path(own[-1][0].f_code.co_filename).name}:{own[-1][1]}" if own else ""


def _is_watcher(frame: FrameType) -> bool:
    return frame.f_code.co_name in _WATCHERS and _is_of(frame, "schedsim")


def _is_of(frame: FrameType, package: str) -> bool:
    return f"{frame.f_globals.get('__name__')}.".startswith(f"{package}.")


def _is_users(frame: FrameType) -> bool:
    file = Path(frame.f_code.co_filename)
    return file.is_file() and not any(file.is_relative_to(folder) for folder in _LIBRARIES)
