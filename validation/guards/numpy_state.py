"""The state of NumPy's default generator, asked for in each step: quickly where nothing has drawn.

NumPy gives the state as a table that takes 70 us to build. Where its memory is the same as when it
was last built, and no half of a pair of normal numbers waited then, so is the state: whatever draws
changes that memory.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

_WAITS = 3
"""Entry of a legacy state: whether the second of two normal numbers waits to be drawn."""
_NUM_BYTES = 4 * 624 + 4
"""Of the memory of a Mersenne twister: its words, and the place of the next one."""


class NumpyState:
    """The state of the default generator, as ``numpy.random.get_state`` gives it.

    Examples
    --------
    >>> state = NumpyState()
    >>> before = state.now()
    >>> state.now() is before
    True
    >>> _ = np.random.rand()
    >>> state.now() is before
    False
    """

    def __init__(self) -> None:
        self._memory = b""
        self._found: Any = None

    def now(self) -> Any:
        """The present state; its arrays are not to be changed."""
        memory = _memory_now()
        if not memory:
            return np.random.get_state(legacy=False)
        if self._found is None or self._found[_WAITS] or memory != self._memory:
            self._memory, self._found = memory, np.random.get_state()
        return self._found


def _memory_now() -> bytes:
    """The memory of the default generator; empty where it is of another kind."""
    generator = getattr(np.random, "get_bit_generator", lambda: None)()
    if type(generator) is not np.random.MT19937:
        return b""
    return ctypes.string_at(generator.ctypes.state_address, _NUM_BYTES)
