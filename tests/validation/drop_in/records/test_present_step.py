"""The running step."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from schedsim.validation.drop_in.records.present_step import PresentStep
from schedsim.validation.drop_in.records.step_calls import StepCalls


def test_a_step_that_ends_leaves_its_calls_and_what_was_given_until_the_next():
    """Whoever holds the calls of the step before keeps them."""
    step = PresentStep(is_spoiled=True, given={8: 4})
    calls = step.calls
    calls.order.append(0)
    step.end()
    assert step == PresentStep(calls=StepCalls(), given={8: 4})
    assert calls.order == [0]
