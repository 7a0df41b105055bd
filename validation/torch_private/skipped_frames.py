"""Functions that Dynamo gives up, so that no backend is ever called with a graph of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any

import torch._dynamo
import torch._dynamo.eval_frame
import torch._dynamo.types
from torch import nn
from torch._dynamo.exc import Unsupported
from torch._dynamo.utils import counters

from .sharded_groups import is_sharded


def hooks_run_as_they_are(model: nn.Module) -> None:
    """Let Dynamo leave the hooks that spread tensors to Python, where it does not inline them.

    Around a module that gathers its parameters, each such hook is a function of its own to Dynamo.
    There torch cannot trace what makes an embedding's rows whole, of which each rank has looked up
    some: which these are, an embedding leaves for the hook behind it where no graph shows it. So
    its lookup is left to Python, too.
    """
    frame: Any = torch._dynamo.eval_frame
    types: Any = torch._dynamo.types
    skip = types.FrameExecStrategy(types.FrameAction.SKIP, types.FrameAction.SKIP)
    for module in model.modules():
        hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
        spread = [it for it in hooks if it.__module__ == "torch.distributed.tensor._api"]
        codes = [hook.__code__ for hook in spread]
        if spread and isinstance(module, nn.Embedding) and is_sharded(module):
            codes.append(nn.Embedding.forward.__code__)
        for code in codes:
            frame.set_code_exec_strategy(code, skip)


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
