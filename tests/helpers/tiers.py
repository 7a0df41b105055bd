"""The slow tier of the tests, which runs with ``pytest --slow``, and what the rest leaves to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest

SLOW = "SCHEDSIM_SLOW_TESTS"
"""Set, to anything, in the processes of a run with ``--slow``."""

_SHARE = 8
"""Examples of a property with ``--slow``, over those without."""


def examples(number: int) -> int:
    """`number` of examples of a property with ``--slow``; an eighth, at least 5, without."""
    return number if os.environ.get(SLOW) else min(number, max(5, number // _SHARE))


def slow_where(values: Iterable[Any], is_slow: Callable[[Any], bool]) -> list[Any]:
    """Values for ``pytest.mark.parametrize``, those for which `is_slow` in the slow tier."""
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=[pytest.mark.slow] if is_slow(value) else [],
        )
        for value in values
    ]
