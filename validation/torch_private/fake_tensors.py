"""Tensors without memory, those of a trace, and sizes that a trace leaves open."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


def fake_mode() -> FakeTensorMode:
    """A mode in which tensors have sizes and no memory; real constants are let in."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def is_symbolic(value: object) -> bool:
    """Whether `value` is a number that a trace left open."""
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def size_text(size: torch.SymInt) -> str | None:
    """Python source for `size` over the names of open sizes; ``None`` where data decide it."""
    return _expression_text(size.node.expr)


class KnownSize(NamedTuple):
    """What a trace knows of an open size.

    Attributes
    ----------
    traced
        Its value during the trace.
    told
        The largest value that the caller named (`mark_dynamic(max=...)`); otherwise ``None``.
    most
        The largest value that the graph takes, named or found (positions that a table has);
        ``None`` where it has none.
    """

    traced: int
    told: int | None
    most: int | None


def known_of(size: torch.SymInt) -> KnownSize:
    """What the trace knows of `size`, a size that it left open."""
    symbol, env = size.node.expr, size.node.shape_env
    traced = int(size.node.hint)
    found = env.var_to_range.get(symbol)
    if found is None or not found.upper.is_finite or found.upper >= 2**31:
        return KnownSize(traced, None, None)
    most = int(found.upper)
    # Torch keeps one range for both: what it found itself is also a guard.
    is_guard = any(
        guard.expr.free_symbols == {symbol} and not guard.expr.subs(symbol, most + 1)
        for guard in env.guards
    )
    return KnownSize(traced, None if is_guard else most, most)


@functools.cache
def _expression_text(expression: Any) -> str | None:
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
    from torch.utils._sympy.printers import PythonPrinter

    if free_unbacked_symbols(expression):
        return None
    text: str = PythonPrinter().doprint(expression.expand())
    return text


def is_fake(value: object) -> bool:
    """Whether `value` is a tensor without memory of its own."""
    return isinstance(value, FakeTensor)


def is_traced(value: object) -> bool:
    """Whether `value` is a tensor of a trace, and not one that a kernel could take."""
    from torch._subclasses.functional_tensor import FunctionalTensor

    return isinstance(value, FakeTensor | FunctionalTensor)


@contextlib.contextmanager
def asked_by(ask: Callable[[Any, torch.Tensor], Any]) -> Iterator[None]:
    """Within a trace, have ``ask(method, tensor)`` answer what Python asks of a tensor.

    The tensors of a trace answer some questions by asking others, past all modes.
    """
    from torch._subclasses.functional_tensor import FunctionalTensor

    names = ("__bool__", "__int__", "__float__", "__index__", "tolist")
    own = {name: vars(FunctionalTensor)[name] for name in names if name in vars(FunctionalTensor)}

    def asking(method: Any) -> Any:
        return lambda tensor: ask(method, tensor)

    try:
        for name in own:
            setattr(FunctionalTensor, name, asking(getattr(torch.Tensor, name)))
        yield
    finally:
        for name, method in own.items():
            setattr(FunctionalTensor, name, method)


def without_memory(values: Sequence[Any]) -> list[Any]:
    """The tensors among `values` as fakes of one mode; the rest as it is."""
    mode = fake_mode()
    return [mode.from_tensor(it) if isinstance(it, torch.Tensor) else it for it in values]
