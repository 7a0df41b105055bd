"""Schedules made of segments."""

from __future__ import annotations

import pytest
from chains import unit_chain
from schedsim.algorithms.chains.segment_schedule import segment_schedule


@pytest.mark.parametrize("starts", [[1], [0, 0], [0, 3, 2], [0, 4], []])
def test_segment_starts_are_checked(starts):
    """Starts that do not ascend from 0 are refused."""
    with pytest.raises(ValueError, match="segment starts"):
        segment_schedule(unit_chain(4), starts)
