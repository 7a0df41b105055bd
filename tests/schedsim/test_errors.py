"""Hints: for unknown names, and where Python shows them."""

from __future__ import annotations

import pickle
import traceback

from schedsim.errors import SchedsimError, did_you_mean


def test_the_nearest_name_or_what_is_said_otherwise():
    """One letter off is a slip; nothing alike gets the other hint."""
    known = {"frontier": 1, "rotor": 2}
    assert did_you_mean("roter", known) == "did you mean 'rotor'?"
    assert did_you_mean("xyz", known, "one of frontier, rotor") == "one of frontier, rotor"
    assert did_you_mean("xyz", known) == ""


def test_what_python_prints_has_the_hint():
    """As the budget that works, which a script that is refused shows nowhere else."""
    error = SchedsimError("8 bytes do not fit", hint="budget=16")
    shown = "".join(traceback.format_exception(error))
    assert shown.endswith("SchedsimError: 8 bytes do not fit\nhint: budget=16\n")
    assert not hasattr(SchedsimError("8 bytes do not fit"), "__notes__")
    again = pickle.loads(pickle.dumps(error))
    assert "".join(traceback.format_exception(again)) == shown
