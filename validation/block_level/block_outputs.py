"""What a block returns beside its activation, where the model runs without the block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from schedsim.errors import UnsupportedError

from ..torch_private.pytrees import tree_leaves


class Unread:
    """Stands for a tensor, or an object that may hold some, which the model must not read.

    The model may pass it on, or collect it, as lists of attention weights are collected.

    Examples
    --------
    >>> weights = Unread("Block")
    >>> collected = (weights,)
    >>> weights.shape
    Traceback (most recent call last):
    schedsim.errors.UnsupportedError: the model reads what a Block returns beside its activation
    hint: switch off caches and extra outputs (use_cache=False), or use --level op
    """

    def __init__(self, block: str) -> None:
        self._block = block

    def _refuse(self, *_: Any) -> NoReturn:
        raise UnsupportedError(
            f"the model reads what a {self._block} returns beside its activation",
            hint="switch off caches and extra outputs (use_cache=False), or use --level op",
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # asked by isinstance and by copy
            raise AttributeError(name)
        self._refuse()

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> NoReturn:
        next(one for one in tree_leaves((args, kwargs)) if isinstance(one, cls))._refuse()

    __len__ = __iter__ = __bool__ = __getitem__ = __call__ = _refuse
    __add__ = __radd__ = __mul__ = __rmul__ = __matmul__ = __sub__ = __truediv__ = _refuse


@dataclass(frozen=True, slots=True)
class BlockOutput:
    """The form in which a block returns its activation.

    Attributes
    ----------
    sequence
        ``tuple`` or ``list``, with the activation first; ``None`` where the block returns it alone.
    rest
        What comes behind the activation, without tensors.
    """

    sequence: type[tuple[Any, ...]] | type[list[Any]] | None = None
    rest: tuple[Any, ...] = ()

    @classmethod
    def of(cls, block: str, out: Any) -> BlockOutput:
        """The form of `out`, which a block of the type `block` has returned."""
        if not isinstance(out, tuple | list) or not out:
            return cls()
        sequence = list if isinstance(out, list) else tuple
        return cls(sequence, tuple(_without_tensors(block, one) for one in out[1:]))

    def activation(self, out: Any) -> Any:
        """The activation in what the block returns.

        Raises
        ------
        UnsupportedError
            The block returns other numbers, or nothing where it returned something, beside it.
        """
        if self.sequence is None:
            return out
        found = tuple(_without_tensors("", one) for one in out[1:])
        if not _same(found, self.rest):
            raise UnsupportedError(
                f"a block returns {_shown(found)} beside its activation, and returned "
                f"{_shown(self.rest)} when it was planned",
                hint="use --level op",
            )
        return out[0]

    def wrap(self, value: Any) -> Any:
        """`value` in the form in which the block returns it."""
        return value if self.sequence is None else self.sequence((value, *self.rest))


_PLAIN = (bool, int, float, str, bytes, type(None))


def _without_tensors(block: str, found: Any) -> Any:
    """Numbers, text, and tuples or lists of these, as they are; else what stands for them."""
    if isinstance(found, _PLAIN):
        return found
    if type(found) in (tuple, list) and all(isinstance(one, _PLAIN) for one in found):
        return type(found)(found)
    return Unread(block)


def _same(found: Sequence[Any], known: Sequence[Any]) -> bool:
    if len(found) != len(known):
        return False
    return all(
        (isinstance(one, Unread) and isinstance(other, Unread))
        or (type(one) is type(other) and one == other)
        for one, other in zip(found, known, strict=True)
    )


def _shown(rest: Sequence[Any]) -> str:
    return repr(tuple("..." if isinstance(one, Unread) else one for one in rest))
