"""Networks put together op by op."""

from __future__ import annotations

import numpy as np
import pytest

from schedsim import SchedsimError
from schedsim.workloads._synthetic_network import (
    SyntheticNetwork,
    empty_network,
    graph_generator,
)


def test_gradients_come_from_every_reader_and_views_keep_what_they_look_at():
    """Two readers give two gradients; a backward of what reads a view reads its storage, too."""
    net = SyntheticNetwork(np.random.default_rng(0))
    first = net.op()
    view = net.op(first, view=True)
    net.op(view)
    net.op(first)
    graph = net.training("step")
    ops = {op.name: op for op in graph}
    assert set(ops["b0"].reads) == {"d0:1", "d0:3"}
    assert {"x0", "x1"} <= set(ops["b2"].reads)
    assert (ops["f1"].time_s, ops["f1"].writes) == (0.0, {"x1": 0})
    assert set(ops["loss"].reads) == {"x2", "x3"}


def test_too_few_ops_and_seeds_below_zero_are_refused():
    with pytest.raises(SchedsimError, match="num_ops 3 is too few"):
        empty_network(3, 0, 4)

    @graph_generator
    def line(num_ops: int, seed: int = 0):
        net, _ = empty_network(num_ops, seed, 1)
        net.op()
        return net.training("line")

    assert line(1).num_ops == 3
    with pytest.raises(SchedsimError, match="seed -1"):
        line(1, -1)
