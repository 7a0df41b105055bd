"""Variables of the environment, read before each step."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any


class EnvironmentReader:
    """Reads the values of some variables.

    A library may name a hundred, and `os.environ` encodes each name anew: it takes longer than all
    else that is looked at before a step. So names are encoded once, where Python lets them.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        encode = getattr(os.environ, "encodekey", None)
        is_known = encode is not None and isinstance(getattr(os.environ, "_data", None), dict)
        self._keys = tuple(map(encode, self._names)) if encode is not None and is_known else None

    def read(self) -> tuple[Any, ...]:
        """The values, in an order and a form that do not change."""
        if self._keys is None:
            return tuple(map(os.environ.get, self._names))
        return tuple(map(os.environ._data.get, self._keys))  # type: ignore[attr-defined]
