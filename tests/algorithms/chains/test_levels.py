"""Memory levels below the device: what a plan that checkpoints to them runs on."""

from __future__ import annotations

import pytest

from schedsim import SchedsimError
from schedsim.plans.levels import MemoryLevel


@pytest.mark.parametrize(
    "text", ["8:1", "x:1:1", "8:one:1", "8:-1:1", "all@fast", "8:nan:1", "-1:1:1"]
)
def test_levels_that_are_refused(text):
    with pytest.raises(SchedsimError) as caught:
        MemoryLevel.parse(text, checkpoint_bytes=1, num_checkpoints=1)
    assert caught.value.hint
