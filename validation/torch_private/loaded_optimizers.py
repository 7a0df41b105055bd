"""Optimizers that are given a state which none of their steps has made."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch.optim.optimizer import Optimizer


def when_given_state(tell: Callable[[Optimizer], None]) -> None:
    """Call `tell` with each optimizer that is given a state from now on.

    As by ``load_state_dict``, by a copy, or from a file: all end in ``__setstate__``. torch has
    hooks for the first of these at each optimizer alone.
    """
    own = Optimizer.__setstate__

    @wraps(own)
    def given(self: Optimizer, state: dict[str, Any]) -> None:
        own(self, state)
        tell(self)

    Optimizer.__setstate__ = given  # type: ignore[method-assign]
