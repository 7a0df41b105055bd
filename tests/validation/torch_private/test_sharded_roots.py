"""The root of a sharded model that runs, and the word that its forward begins."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rank_processes import run_ranks  # noqa: E402
from schedsim.validation.torch_private.sharded_roots import (  # noqa: E402
    model_around,
    modules_of_roots,
    root_of,
    running_root,
    when_forward_begins,
)
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


class Looking(nn.Linear):
    """A layer that notes the root that runs, and what is called around it."""

    seen = ()

    def forward(self, x):
        """As a linear layer."""
        root = running_root()
        self.seen = root, model_around(root)
        return super().forward(x)


def _roots(_rank):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.fsdp._fully_shard import _fsdp_state

    model = nn.Sequential(Looking(2, 2), nn.Sequential(Looking(2, 2)))
    around = nn.Sequential(model, nn.ReLU())
    fully_shard(model[1][0])
    fully_shard(model)
    begun, fails = [], []

    def begins(given):
        if fails:
            raise fails.pop()
        begun.append(given)

    when_forward_begins(model, begins)
    x = torch.ones(1, 2)
    around(x)
    for layer in (model[0], model[1][0]):
        assert layer.seen[0] is model
        assert layer.seen[1] is around
    assert running_root() is None
    assert root_of(model[1][0]) is model
    assert {id(model), id(model[0]), id(model[1][0])} <= modules_of_roots()
    assert [it[0][0] is x for it in begun] == [True]  # the layer inside does not begin by itself
    model[1][0](x)
    assert len(begun) == 2
    # Where the word itself fails, the next forward begins as the first did.
    fails.append(ValueError("no room"))
    with pytest.raises(ValueError, match="no room"):
        model(x)
    model(x)
    assert len(begun) == 3

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_fsdp_state.FSDPState, "_root_pre_forward", lambda self, module: None)
        with pytest.raises(schedsim.UnsupportedError, match="where a forward begins") as error:
            when_forward_begins(model, begins)
    assert "in_place=True" in error.value.hint


def test_a_root_says_that_its_forward_begins():
    """Once a forward, before it gathers; or a module inside of it that is called by itself."""
    run_ranks(_roots, 1)


def test_without_a_process_group_nothing_is_sharded():
    """No frame is looked at."""
    assert running_root() is None
    assert modules_of_roots() == set()
