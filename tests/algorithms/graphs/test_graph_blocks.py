"""The blocks of a training step, found by structure: a line of pieces that few tensors join."""

from __future__ import annotations

import pytest
from chains import INSTANCES, needs_instances
from schedsim.algorithms.graphs._graph_blocks import find_blocks

import schedsim


@needs_instances
@pytest.mark.parametrize(
    ("name", "num_blocks", "same"),
    [
        # Stem, 16 bottlenecks and the head, which makes two.
        ("ku_resnet50_train", 19, 5),
        ("ku_densenet_train", 84, 1),
        # Times are measured ones, different in every block.
        ("cm_resnet50_train", 18, 1),
        ("linear64_train", 9, 7),
    ],
)
def test_known_networks_fall_into_blocks(name, num_blocks, same):
    """So many blocks, and so many in the largest class."""
    line = find_blocks(schedsim.load(INSTANCES / "dag" / f"{name}.json"))
    kinds = line.kinds.tolist()
    assert len(kinds) == num_blocks
    assert max(map(kinds.count, kinds)) == same
