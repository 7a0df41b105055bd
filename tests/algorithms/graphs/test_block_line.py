"""Schedules of a line of blocks with options, from the recurrence to runs of the whole graph."""

from __future__ import annotations

import numpy as np
import pytest
from schedsim.algorithms.graphs._block_line import SolvedLine
from schedsim.algorithms.graphs._graph_blocks import find_blocks

from schedsim import Graph, Op
from schedsim.plans.effort import Effort


def layers_with_results(num_layers: int) -> Graph:
    """Layers of three ops each way, of which each backward leaves a parameter's gradient."""
    ops, reads = [], "input"
    for k in range(3 * num_layers):
        ops.append(Op(f"f{k}", time_s=1 + k % 3, reads=(reads,), writes={f"a{k}": 100 + k % 3}))
        reads = f"a{k}"
    ops.append(Op("loss", "loss", reads=(reads,), writes={f"g{3 * num_layers}": 100}))
    for k in reversed(range(3 * num_layers)):
        ops.append(
            Op(
                f"b{k}",
                "backward",
                time_s=2,
                reads=(f"g{k + 1}", f"a{k}", f"a{k - 1}" if k else "input"),
                writes={f"g{k}": 100, f"w{k}": 37},
            )
        )
    results = tuple(f"w{k}" for k in range(3 * num_layers))
    return Graph("layers with results", tuple(ops), {"input": 100}, 0, results)


@pytest.mark.slow
def test_equal_blocks_are_equal_in_slots():
    """What blocks leave behind is rounded block by block: rows are shared between equal ones."""
    line = find_blocks(layers_with_results(36))
    kind = int(np.argmax(np.bincount(line.kinds)))
    assert np.count_nonzero(line.kinds == kind) >= 6
    solved = SolvedLine.of(line, effort=Effort(0.0), seed=0)
    for slot_bytes in (50.0, 97.0, 200.0, 333.3):
        *_, results = solved._in_slots(slot_bytes)
        assert len(set(np.diff(results)[line.kinds == kind].tolist())) == 1
