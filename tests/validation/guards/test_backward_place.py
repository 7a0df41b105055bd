"""A backward in another autocast than the traced one is said once, and is a change."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.autocasts import Autocast, backward_within  # noqa: E402
from schedsim.validation.guards.backward_place import BackwardAutocast  # noqa: E402
from schedsim.validation.guards.plan_variants import RoundingWarning  # noqa: E402


def test_another_place_is_said_once():
    """And it stays a change, so that the step is planned anew."""
    place = BackwardAutocast()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        place.run_here("Net")
    assert place.change is None
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.warns(RoundingWarning, match="Net runs within autocast .cpu to bfloat16."):
            place.run_here("Net")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            place.run_here("Net")
    assert "within autocast" in str(place.change)


def test_a_trace_for_a_backward_within_autocast():
    """There it is the backward outside that is another one."""
    with backward_within(Autocast((("cpu", torch.bfloat16),))):
        place = BackwardAutocast()
    with torch.autocast("cpu", torch.bfloat16):
        place.run_here("Net")
    assert place.change is None
    with pytest.warns(RoundingWarning, match="runs outside of autocast"):
        place.run_here("Net")
    assert str(place.change).startswith("the place of backward() is 'outside of autocast'")
