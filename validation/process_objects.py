"""The objects of the process of some kind, while other threads may be making more."""

from __future__ import annotations

import gc
import operator
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import chain, compress, repeat
from typing import Any


def objects_of(*kinds: type) -> list[Any]:
    """All objects whose class is one of `kinds` itself.

    Notes
    -----
    O(objects of the process), for each kind.
    """
    return [it for kind in kinds for it in _found(operator.is_, kind)]


def objects_within(kind: type) -> list[Any]:
    """All objects whose class is `kind`, or derived from it. O(objects of the process)."""
    return _found(issubclass, kind)


def _found(fits: Callable[[type, type], bool], kind: type) -> list[Any]:
    """The objects whose class `fits`.

    One call of C holds the others, in which no other thread runs. A tuple that one is making, as by
    ``tuple(row for row in rows)``, must have no second reference when that goes on: CPython would
    raise "bad argument to internal function" there, in the code that loads data for one.
    """
    found: list[Any] = []
    now: list[list[Any]] = []
    fitting = map(fits, map(type, chain.from_iterable(now)), repeat(kind))
    steps: tuple[Callable[[], Any], ...] = (
        partial(now.extend, map(gc.get_objects, (None,))),
        partial(found.extend, compress(chain.from_iterable(now), fitting)),
        now.clear,
        partial(deque, fitting, 0),  # to its end, where it lets go
    )
    run: Callable[[Callable[[], Any]], Any] = operator.call
    deque(map(run, steps), 0)
    return found
