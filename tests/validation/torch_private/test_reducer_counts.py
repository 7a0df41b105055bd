"""Backward passes that a wrapper of a static graph counts."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rank_processes import run_ranks  # noqa: E402
from schedsim.validation.torch_private.reducer_counts import (  # noqa: E402
    counts_passes,
    noted_passes,
)
from torch import nn  # noqa: E402


def _counted(rank):
    wrapper = nn.parallel.DistributedDataParallel(nn.Linear(2, 2), static_graph=True)
    other = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    found = [counts_passes(wrapper), counts_passes(other)]
    with noted_passes(wrapper) as reached:
        other(torch.ones(1, 2)).sum().backward()
        found.append(list(reached))
        wrapper(torch.ones(1, 2)).sum().backward()
        found.append(sorted(reached))
    wrapper(torch.ones(1, 2)).sum().backward()
    return [*found, sorted(reached), counts_passes(wrapper)]


@pytest.mark.slow
def test_passes_of_the_first_step_are_counted():
    """Of a static graph alone; they are noted by the number of each parameter that they reach."""
    assert run_ranks(_counted, 1) == [[True, False, [], [0, 1], [0, 1], False]]
