"""What the model says of bytes between router and experts is what PyTorch's ops move."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.expert_traffic import WAYS, counted, table
from schedsim.clusters.token_routes import ROUTES


@pytest.mark.parametrize("name", WAYS)
def test_ops_move_the_bytes_of_the_model(name):
    """Forward and backward, before the experts and behind them."""
    ours = ROUTES[name]
    model = (ours.sent, ours.combined, ours.combined_back, ours.sent_back)
    assert counted(name) == pytest.approx(model, abs=0.02)


def test_every_way_has_a_row():
    """Those of fused kernels, which are no ops of PyTorch, have none."""
    rows = [line.partition(":")[0] for line in table()]
    assert rows == ["way", *WAYS]
    assert ROUTES.keys() - WAYS.keys() == {"fused", "hybridep"}
