"""Hints for unknown names."""

from __future__ import annotations

from schedsim.errors import did_you_mean


def test_the_nearest_name_or_what_is_said_otherwise():
    """One letter off is a slip; nothing alike gets the other hint."""
    known = {"frontier": 1, "rotor": 2}
    assert did_you_mean("roter", known) == "did you mean 'rotor'?"
    assert did_you_mean("xyz", known, "one of frontier, rotor") == "one of frontier, rotor"
    assert did_you_mean("xyz", known) == ""
