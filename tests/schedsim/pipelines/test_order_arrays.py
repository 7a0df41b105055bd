"""An order as arrays says the same as its actions."""

import pytest

from schedsim.pipelines import make_order
from schedsim.pipelines.order_arrays import order_arrays


@pytest.mark.parametrize(
    "which",
    [("gpipe", 3, 4, 1), ("1f1b", 2, 5, 1), ("zero-bubble", 3, 5, 1), ("interleaved", 2, 4, 3)],
)
def test_each_action_in_its_place(which):
    """On every device."""
    arrays = order_arrays(*which)
    for k, actions in enumerate(make_order(*which)):
        mine = slice(arrays.first[k], arrays.first[k + 1])
        kinds = ["FBW"[kind] for kind in arrays.kind[mine]]
        told = list(zip(kinds, arrays.stage[mine], arrays.micro[mine], strict=True))
        assert told == [(one.kind, one.stage, one.micro) for one in actions]
    assert arrays.first[-1] == arrays.kind.size
