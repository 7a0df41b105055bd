"""Records: arrays that belong together, passed to kernels as one pointer.

A kernel with 26 array arguments takes 180 machine words. The compiler types, checks and counts each
word, and does so again at every call inside the kernel; most of the compile time went there. A
record is one block of words, with the address and the lengths of each array, and a kernel reads the
words where it needs them. The block holds no references of its own; Python's record keeps the
arrays alive. So a kernel must not return an array of a record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache, cached_property
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, cast, get_type_hints

import numpy as np
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., Any])


def remembered(function: Function) -> Function:
    """`functools.cache` with a type that lets mypy pass classes."""
    return cast("Function", cache(function))


class Layout(NamedTuple):
    """The memory layout of a field of a record, or of an argument of a kernel."""

    dtype: str
    num_axes: int


Ints = Annotated[NDArray[np.int64], Layout("int64", 1)]
Table = Annotated[NDArray[np.int64], Layout("int64", 2)]
ShortInts = Annotated[NDArray[np.int32], Layout("int32", 1)]
ShortTable = Annotated[NDArray[np.int32], Layout("int32", 2)]
Codes = Annotated[NDArray[np.int8], Layout("int8", 1)]
Reals = Annotated[NDArray[np.float64], Layout("float64", 1)]
RealTable = Annotated[NDArray[np.float64], Layout("float64", 2)]
Flags = Annotated[NDArray[np.bool_], Layout("bool", 1)]
RandomState = Annotated[NDArray[np.uint64], Layout("uint64", 1)]

_SCALARS = {int: Layout("int64", 0), float: Layout("float64", 0), bool: Layout("bool", 0)}


def layout_of(hint: Any) -> Layout | type[Record] | None:
    """The layout that a kernel sees for an annotation; ``None`` for one that it cannot read.

    Examples
    --------
    >>> layout_of(Table), layout_of(float), layout_of(str)
    (Layout(dtype='int64', num_axes=2), Layout(dtype='float64', num_axes=0), None)
    """
    if isinstance(hint, type) and issubclass(hint, Record):
        return hint
    if isinstance(hint, type):
        return _SCALARS.get(hint)
    found = getattr(hint, "__metadata__", (None,))[0]
    return found if isinstance(found, Layout) else None


class Record:
    """Base of frozen dataclasses whose arrays kernels read by name.

    Kernels can read fields annotated with the aliases of this module, with `int`, `float`, `bool`
    or with another record. Other fields, such as names, are for Python alone.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, eq=False)
    ... class Point(Record):
    ...     coordinates: Reals
    >>> point = Point(np.zeros(3))
    >>> point.words[1]  # its one length
    np.int64(3)
    """

    only_read: ClassVar[bool] = False
    """Whether no kernel writes into the arrays, which all have one axis: see `lists`."""

    @cached_property
    def lists(self) -> Any:
        """The fields with lists in place of arrays, whose items Python reads several times faster.

        Kernels take the length of such an array by `len`.
        """
        named = {name: getattr(self, name) for name, _ in layout_of_record(type(self))}
        return SimpleNamespace(
            **{k: it.tolist() if isinstance(it, np.ndarray) else it for k, it in named.items()}
        )

    @cached_property
    def words(self) -> NDArray[np.int64]:
        """The block that kernels read: for each field an address and lengths, or a value."""
        words: list[int] = []
        for name, layout in layout_of_record(type(self)):
            value = getattr(self, name)
            if isinstance(layout, type):
                words.append(value.address)
            elif layout.num_axes:
                _check(self, name, value, layout)
                words += [value.ctypes.data, *value.shape]
            elif layout.dtype == "float64":
                words.append(int(np.float64(value).view(np.int64)))
            else:
                words.append(int(value))
        return np.array(words, np.int64)

    @cached_property
    def address(self) -> int:
        """The memory address of the block, which is passed to kernels."""
        return int(self.words.ctypes.data)

    def __getstate__(self) -> dict[str, Any]:
        """The fields without the block: addresses mean nothing to another process."""
        made = ("words", "address", "lists")
        return {key: it for key, it in self.__dict__.items() if key not in made}


def _check(record: Record, name: str, value: Any, layout: Layout) -> None:
    fits = value.dtype == np.dtype(layout.dtype) and value.ndim == layout.num_axes
    if not (fits and value.flags.c_contiguous):
        raise TypeError(
            f"{type(record).__name__}.{name} is {value.dtype} of {value.ndim} axes, strides "
            f"{value.strides}; kernels read it as {layout.dtype} of {layout.num_axes}, contiguous"
        )


@remembered
def layout_of_record(record: type[Record]) -> tuple[tuple[str, Layout | type[Record]], ...]:
    """The fields of a record that kernels read, in order."""
    hints = get_type_hints(record, include_extras=True)
    found = [(field.name, layout_of(hints[field.name])) for field in fields(record)]  # type: ignore[arg-type]
    return tuple((name, layout) for name, layout in found if layout is not None)
