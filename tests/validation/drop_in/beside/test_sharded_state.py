"""What is resident on a rank whose parameters are sharded: its shares, and waiting gradients."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.drop_in.beside.sharded_state import ShardedState  # noqa: E402
from schedsim.validation.drop_in.drop_in_options import DropInOptions  # noqa: E402
from torch import nn  # noqa: E402


def test_the_shares_count_and_not_what_parts_read():
    """40 bytes of weight and bias and as many of their gradients; a gathered tensor is neither."""
    model = nn.Linear(4, 2)
    held = ShardedState(lambda: [model], DropInOptions(budget=1, extra_bytes=3))
    held.see([torch.zeros(1000)])
    held.look()
    assert held.lasting_bytes == 40 + 3
    assert held.passing().num_bytes == 0
    model(torch.ones(1, 4)).sum().backward()
    assert held.passing().num_bytes == 40
    assert held.total_bytes == 2 * 40 + 3
    assert held.passing().mode.reduces
