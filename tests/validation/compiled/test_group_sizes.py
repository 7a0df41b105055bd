"""Sizes of groups, from the largest to the smallest."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from schedsim.validation.compiled.group_sizes import GroupSize


def test_smaller_sizes_come_one_after_the_other():
    assert GroupSize.LARGE.smaller == (GroupSize.MEDIUM, GroupSize.SMALL)
    assert GroupSize.MEDIUM.smaller == (GroupSize.SMALL,)
    assert GroupSize.SMALL.smaller == ()
