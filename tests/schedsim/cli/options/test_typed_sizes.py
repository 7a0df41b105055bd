"""Types of options: sizes, budgets, gaps and times, and what is refused with the remedy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedsim.cli.options.typed_sizes import BudgetType, GapType, SizeType, TimeType, size_text
from schedsim.errors import SchedsimError
from schedsim.units import parse_bytes


@given(size=st.one_of(st.integers(0, 2**53 - 1), st.integers(1, 900).map(lambda n: n * 10**9)))
def test_a_size_as_text_gives_exactly_it(size):
    """What is typed in from a hint is what was meant."""
    assert parse_bytes(size_text(size)) == size


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (SizeType("auto"), "auto", "auto"),
        (SizeType("auto"), "2GiB", 2**31),
        (BudgetType(), "60%", "60%"),
        (BudgetType(), "8GB", 8 * 10**9),
        (GapType(), "1%", 0.01),
        (GapType(), "0.25", 0.25),
        (TimeType(), "10us", 1e-5),
        (TimeType(), "2 ms", 2e-3),
        (TimeType(), "3s", 3.0),
    ],
)
def test_what_is_taken(kind, text, value):
    """By each type."""
    assert kind.convert(text, None, None) == pytest.approx(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (SizeType("auto"), "none"),
        (SizeType(), "8Gb"),
        (BudgetType(), "0%"),
        (GapType(), "5"),
        (GapType(), "nan"),
        (GapType(), "-0.1"),
        (TimeType(), "10"),
        (TimeType(), "-1s"),
        (TimeType(), "soon"),
        (TimeType(), "1e400s"),
    ],
)
def test_what_is_refused(kind, text):
    """With a hint."""
    with pytest.raises(SchedsimError) as caught:
        kind.convert(text, None, None)
    assert caught.value.hint
