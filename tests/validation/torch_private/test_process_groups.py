"""Groups of one rank."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from schedsim.validation.torch_private.process_groups import (
    active_wrapper,
    default_group,
    default_store,
)
from torch import nn


@pytest.mark.skipif(dist.is_initialized(), reason="this process has a group already")
def test_the_group_of_all_its_store_and_the_wrapper_that_runs(tmp_path):
    """The wrapper is known while its forward runs, and not after."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/met", rank=0, world_size=1)
    try:
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
    finally:
        dist.destroy_process_group()
