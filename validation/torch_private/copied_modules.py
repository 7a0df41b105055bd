"""Modules that are made as copies of others."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import nn

__all__ = ["when_copied"]


def when_copied(gives: Callable[[nn.Module], None], makes: Callable[[nn.Module], None]) -> None:
    """Call `gives` with each module that others may be made from, and `makes` with each of these.

    As by ``copy.deepcopy``, ``pickle`` and ``torch.load``: all begin with ``__getstate__``, and end
    in ``__setstate__``. torch has no hook for them.
    """
    module: Any = nn.Module
    own, its = module.__getstate__, module.__setstate__

    @wraps(own)
    def given(self: nn.Module) -> Any:
        gives(self)
        return own(self)

    @wraps(its)
    def made(self: nn.Module, state: dict[str, Any]) -> None:
        its(self, state)
        makes(self)

    module.__getstate__ = given
    module.__setstate__ = made
