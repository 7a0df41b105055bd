"""The functions that ``nn.LSTM`` and its kin call, which no hook sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch


def own_function(kind: str) -> Callable[..., Any]:
    """torch's own function `kind`, like ``lstm``, whatever was put in its place."""
    found: Callable[..., Any] = getattr(torch._C._VariableFunctions, kind)
    return found


@contextmanager
def replaced_functions(functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Have recurrent layers call `functions`, by kind."""
    own = {kind: vars(torch._VF).get(kind) for kind in functions}
    try:
        for kind, function in functions.items():
            setattr(torch._VF, kind, function)
        yield
    finally:
        for kind, before in own.items():
            if before is None:
                delattr(torch._VF, kind)
            else:
                setattr(torch._VF, kind, before)
