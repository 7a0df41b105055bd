"""Autocast of a step: of its forward, and of its backward, which a loop may run outside of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Autocast:
    """Which kinds of device cast automatically, and to which type.

    Examples
    --------
    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     Autocast.now()
    Autocast(devices=(('cpu', torch.bfloat16),))
    """

    devices: tuple[tuple[str, torch.dtype], ...] = ()

    @classmethod
    def now(cls) -> Autocast:
        """The present state."""
        return cls(
            tuple(
                (kind, torch.get_autocast_dtype(kind))
                for kind in _kinds()
                if torch.is_autocast_enabled(kind)
            )
        )

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Cast as then, without the cache: a cast made under no_grad must not serve other runs."""
        on = dict(self.devices)
        with ExitStack() as stack:
            for kind in _kinds():
                if kind in on:
                    casting: Any = torch.autocast(kind, dtype=on[kind], cache_enabled=False)
                    stack.enter_context(casting)
                elif torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            yield

    def __str__(self) -> str:
        if not self.devices:
            return "outside of autocast"
        types = (f"{kind} to {str(dtype).removeprefix('torch.')}" for kind, dtype in self.devices)
        return f"within autocast ({', '.join(types)})"


def _kinds() -> tuple[str, ...]:
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


_of_backward: ContextVar[Autocast] = ContextVar("of_backward")


def backward_autocast() -> Autocast:
    """The state in which backwards are traced and compared: outside of autocast, as torch advises.

    Formulas of a backward that are made of several ops cast within autocast, and their results
    have other bits. The forward does not know where ``backward()`` will be called.
    """
    return _of_backward.get(Autocast())


@contextmanager
def backward_within(autocast: Autocast) -> Iterator[None]:
    """Trace and compare backwards as this loop runs them."""
    before = _of_backward.set(autocast)
    try:
        yield
    finally:
        _of_backward.reset(before)


def run_backward(loss: torch.Tensor) -> None:
    """``loss.backward()`` as the loop is taken to run it, wherever it is called."""
    with backward_autocast().entered():
        loss.backward()  # type: ignore[no-untyped-call]
