"""Modules that are made as copies of others."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import nn

__all__ = ["when_copied"]


def when_copied(tell: Callable[[nn.Module], None]) -> None:
    """Call `tell` with each module that is made from what another one was, from now on.

    As by ``copy.deepcopy``, ``pickle`` and ``torch.load``: all end in ``__setstate__``. torch has
    no hook for them.
    """
    own = nn.Module.__setstate__

    @wraps(own)
    def made(self: nn.Module, state: dict[str, Any]) -> None:
        own(self, state)
        tell(self)

    nn.Module.__setstate__ = made  # type: ignore[method-assign]
