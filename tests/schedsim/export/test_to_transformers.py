"""Code for transformers: which layers it checkpoints."""

from __future__ import annotations

import pytest
from small_exports import executed, loose, tight

pytest.importorskip("transformers.modeling_layers", reason="transformers is not installed")


def test_layers_are_those_of_the_plan():
    """All four at the least memory, which is every first one; none where memory is plenty."""
    for exported, layers, every in ((tight, [0, 1, 2, 3], 1), (loose, [], None)):
        names = executed(exported("transformers").text)
        assert (names["CHECKPOINTED"], names["NUM_LAYERS"], names["EVERY"]) == (layers, 4, every)
        ran = exported("transformers").schedule.names
        assert [i for i in range(4) if ran.count(f"F{i + 1}") == 2] == layers  # F0 embeds
