"""The largest size that fits, found with few sizes where each one takes a measurement."""

from __future__ import annotations

from collections.abc import Callable

_SECOND = 8
"""The second size that is looked at: sizes near 1 say little, as an allocator rounds up."""

_FARTHEST = 256
"""No guess is more than so many times the largest size that was looked at."""

_MOST_GUESSES = 3

_NEAR = 64
"""First steps away from a guess are a part of so many of it, and so near are guesses that agree."""


def measured_boundary(
    fits: Callable[[int], bool],
    least_bytes: Callable[[int], int | None],
    budget_bytes: int,
    most: int,
) -> int:
    """A size up to `most` that fits, while the next one does not, or is beyond `most`.

    Least budgets grow about linearly with the size: two of them say where the budget is met. From
    there steps of growing width go up, or down, to a size on the other side of the boundary; then
    the interval is halved.

    Parameters
    ----------
    fits
        Whether a size fits; size 1 does.
    least_bytes
        About the least budget of a size, or ``None`` where it is not known.

    Notes
    -----
    Looks at O(log size) sizes, and at hardly any that is far from the boundary.

    Examples
    --------
    >>> seen = []
    >>> def fits(size):
    ...     seen.append(size)
    ...     return 100 + 3 * size <= 5000
    >>> measured_boundary(fits, lambda size: 100 + 2.95 * size, 5000, 2**20)
    1633
    >>> seen
    [1661, 1636, 1586, 1611, 1623, 1629, 1632, 1634, 1633]
    """
    size = _guessed(least_bytes, budget_bytes, most)
    step = max(1, size // _NEAR)
    low, high = 1, most + 1  # `high` does not fit, or is beyond `most`
    while high - low > 1:
        size = min(max(size, low + 1), high - 1)
        if fits(size):
            low = size
        else:
            high = size
        if high > most:
            size = low + step
        elif low == 1:
            size = max(high - step, (low + high) // 2)
        else:
            size = (low + high) // 2
        step *= 2
    return low


def _guessed(least_bytes: Callable[[int], int | None], budget_bytes: int, most: int) -> int:
    """The size at which least budgets say that the budget is met; 2 where they say nothing."""
    needs: dict[int, int] = {}
    size = 1
    for _ in range(_MOST_GUESSES + 1):
        least = least_bytes(size)
        if least is None:
            break
        needs[size] = least
        met = _SECOND if len(needs) == 1 else where_met(needs, budget_bytes)
        if met is None:
            break
        met = min(max(met, 1), _FARTHEST * size, most)
        if met in needs or abs(met - size) <= size // _NEAR:
            return met
        size = met
    return size if len(needs) > 1 else 2


def where_met(needs: dict[int, int], budget_bytes: int) -> int | None:
    """The size at which the line through the two `needs` nearest to the budget meets it."""
    nearest = sorted(needs, key=lambda size: abs(needs[size] - budget_bytes))[:2]
    if len(nearest) < 2:
        return None
    one, other = sorted(nearest)
    growth = (needs[other] - needs[one]) / (other - one)
    return int(one + (budget_bytes - needs[one]) / growth) if growth > 0 else None
