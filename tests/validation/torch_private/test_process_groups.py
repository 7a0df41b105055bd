"""Groups of one rank."""

from __future__ import annotations

import pytest
import torch
from rank_processes import run_ranks
from schedsim.validation.torch_private.process_groups import (
    active_wrapper,
    default_group,
    default_store,
)
from torch import nn


def _looked_at(rank):
    group = default_group()
    assert group is default_group()
    default_store().set("key", "value")
    assert default_store().get("key") == b"value"
    seen = []

    class Net(nn.Linear):
        def forward(self, x):
            seen.append(active_wrapper())
            return super().forward(x)

    parallel = nn.parallel.DistributedDataParallel(Net(1, 1))
    parallel(torch.ones(1, 1))
    assert seen == [parallel]
    assert active_wrapper() is None
    assert parallel.gradient_as_bucket_view is False
    assert isinstance(parallel.parameters_to_ignore, list | set)


@pytest.mark.slow
def test_the_group_of_all_its_store_and_the_wrapper_that_runs():
    """The wrapper is known while its forward runs, and not after."""
    run_ranks(_looked_at, 1)
