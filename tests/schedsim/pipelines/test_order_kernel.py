"""The kernel, compiled and as Python runs it, and an order that cannot run."""

import numpy as np
import pytest

from schedsim.errors import SchedsimError
from schedsim.kernels.compiled import in_python
from schedsim.pipelines._order_kernel import play_order
from schedsim.pipelines.order_arrays import OrderArrays, order_arrays
from schedsim.pipelines.order_seconds import order_makespan


def test_compiled_as_in_python():
    """The same source on the same numbers."""
    order = order_arrays("interleaved", 3, 6, 2)
    seconds = np.random.default_rng(0).random((3, 6))
    ends = []
    for function in (play_order, in_python(play_order)):
        scratch = np.full((12, 6), -1.0), np.zeros(9), order.first[:-1].copy()
        ends.append(function(order, seconds, 0.1, *scratch))
    assert ends[0] == ends[1] > 6 * seconds[:2].sum() / 3


def test_devices_that_wait_for_one_another():
    """The first one runs its backward before its forward."""
    order = order_arrays("1f1b", 2, 1, 1)
    kinds = np.array([1, 0, 0, 1], dtype=np.int8)
    swapped = OrderArrays(order.first, kinds, order.stage, order.micro)
    with pytest.raises(SchedsimError, match="devices wait for one another"):
        order_makespan(swapped, [1.0, 1.0], [1.0, 1.0])
