"""Checks of single values: what passes, and what is refused with the place that it stands at."""

from __future__ import annotations

import math

import pytest

from schedsim.checks.value_checks import (
    MAX_BYTES,
    check_bytes,
    check_name,
    check_seconds,
    check_total,
    shown,
    shown_key,
)
from schedsim.errors import InvalidWorkloadError


def repr_or_long(value):
    """Names of tests, too, are of numbers that can be printed."""
    return "long" if isinstance(value, int) and value > MAX_BYTES + 1 else repr(value)


@pytest.mark.parametrize(
    "value", [True, 1.0, "1", None, -1, MAX_BYTES + 1, 10**5000], ids=repr_or_long
)
def test_what_is_no_size_is_refused(value):
    """Also where the number is too long to print."""
    check_bytes(0, "x")
    check_bytes(MAX_BYTES, "x")
    with pytest.raises(InvalidWorkloadError) as caught:
        check_bytes(value, "stages[2].saved_bytes")
    assert caught.value.path == "stages[2].saved_bytes"


@pytest.mark.parametrize("value", [True, "1", None, -0.5, math.nan, math.inf, 1e16])
def test_what_is_no_time_is_refused(value):
    """A time is finite, and sums of times stay so."""
    check_seconds(0, "x")
    check_seconds(1e15, "x")
    with pytest.raises(InvalidWorkloadError):
        check_seconds(value, "x")


@pytest.mark.parametrize("value", ["", "a\nb", "\x1b[31m", 3, None])
def test_what_is_no_name_is_refused(value):
    """Names are one line of text."""
    check_name("layer 3, größer", "x")
    with pytest.raises(InvalidWorkloadError):
        check_name(value, "x")


def test_sizes_together_are_a_size():
    """So that every peak is one."""
    check_total(MAX_BYTES, "x")
    with pytest.raises(InvalidWorkloadError, match="all sizes together"):
        check_total(MAX_BYTES + 1, "x")


def test_what_is_shown_fits_a_line():
    """Cut to 60 characters, with control characters escaped."""
    assert shown("a" * 100) == "'" + "a" * 56 + "..."
    assert shown("a\n") == "'a\\n'"
    assert shown(10**5000) == "a number too long to print"
    assert (shown_key("layer 1"), shown_key("a\tb")) == ("layer 1", "'a\\tb'")
