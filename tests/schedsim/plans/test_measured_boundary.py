"""The boundary between sizes that fit and sizes that do not, found with few looks."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from schedsim.plans.measured_boundary import measured_boundary


def looked_at(least, budget: int, most: int = 2**20, known=lambda size: True):
    """The boundary, and the sizes whose fit was asked for."""
    seen = []

    def fits(size: int) -> bool:
        seen.append(size)
        return least(size) <= budget

    found = measured_boundary(fits, lambda size: least(size) if known(size) else None, budget, most)
    return found, seen


@settings(max_examples=examples(200), deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 10**4),
    st.integers(2, 10**5),
    st.integers(1, 10**4),
    st.integers(90, 110),
)
def test_few_looks_where_memory_grows_by_a_line(static, slope, size, rest, share):
    """Also where the least budgets that are known are some percent off."""

    def least(size: int) -> int:
        return static + slope * size

    budget, seen = least(size) + rest % slope, []

    def fits(number: int) -> bool:
        seen.append(number)
        return least(number) <= budget

    found = measured_boundary(fits, lambda n: static + slope * n * share // 100, budget, 2**20)
    assert found == size
    assert all(number > size // 4 for number in seen)
    assert len(seen) <= (6 if share == 100 and size >= 8 else 8 + 2 * size.bit_length())


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.integers(0, 50), min_size=2, max_size=300),
    st.integers(0, 4000),
    st.integers(1, 400),
    st.sets(st.integers(1, 300)),
)
def test_it_is_a_boundary_whatever_the_sizes(growths, room, most, unknown):
    """Of memory that grows by steps and jumps, with least budgets that are not all known."""

    def least(size: int) -> int:
        return sum(growths[: size - 1]) + size // 100

    budget = least(1) + room
    found, seen = looked_at(least, budget, most, lambda size: size not in unknown)
    assert least(found) <= budget
    assert found == most or least(found + 1) > budget
    assert len(seen) <= 6 * most.bit_length() + 6


def test_memory_that_falls_and_rises_gives_a_boundary():
    """Any size that fits before one that does not will do."""

    def least(size: int) -> int:
        return 10 * size - (7 * size if size % 8 == 0 else 0)

    found, _ = looked_at(least, 1000)
    assert least(found) <= 1000 < least(found + 1)


def test_memory_that_does_not_grow_ends_at_the_limit():
    found, seen = looked_at(lambda size: 5, 10, most=5000)
    assert found == 5000
    assert len(seen) < 15
