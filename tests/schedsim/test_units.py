"""Sizes and times as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedsim.units import UnitError, format_bytes, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GB", 8 * 10**9), ("8GiB", 2**33), ("7.5 GiB", 15 * 2**29), ("512", 512), ("0", 0),
     ("1_000B", 1000), ("8gb", 8 * 10**9), ("1e3 MB", 10**9), ("0.3kB", 300), ("1.0001KiB", 1024)],
)  # fmt: skip
def test_sizes(text, size):
    """Decimal and binary units, fractions rounded down to whole bytes."""
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["8G", "8g", "80M", "1.5T"])
def test_ambiguous_units_offer_both(text):
    """G alone is neither GB nor GiB."""
    with pytest.raises(UnitError, match="ambiguous") as caught:
        parse_bytes(text)
    assert "B (powers of 1000)" in caught.value.hint
    assert "iB (powers of 1024)" in caught.value.hint


@pytest.mark.parametrize("text", ["", "GB", "8 XB", "-1GB", "1.5", "nan", "8GBs", "8Gb/s", "1e9GB"])
def test_what_is_no_size_is_refused(text):
    """With one line and a hint."""
    with pytest.raises(UnitError) as caught:
        parse_bytes(text)
    assert caught.value.hint


@given(st.integers(0, 2**53 - 1))
def test_plain_bytes_round_trip(size):
    """Digits alone are bytes, exactly."""
    assert parse_bytes(str(size)) == size


def test_formats():
    """Both systems, and times by their size."""
    assert format_bytes(8 * 10**9) == "8.00 GB (7.45 GiB)"
    assert format_bytes(999) == "999 B"
    assert format_bytes(1500) == "1.50 kB (1.46 KiB)"
    assert [format_seconds(t) for t in (10.55, 0.02, 3e-6, 0)] == ["10.6 s", "20 ms", "3 us", "0 s"]
