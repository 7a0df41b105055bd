"""Which processes take part in the steps of a model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = pytest.importorskip("torch.distributed")

from schedsim.validation.ranks import members  # noqa: E402
from schedsim.validation.ranks.members import communicates, mesh_ranks, ranks_of  # noqa: E402
from schedsim.validation.ranks.ranks import ALONE, Ranks  # noqa: E402
from schedsim.validation.whole_step import plan_maker  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")


@pytest.fixture
def group(monkeypatch):
    """Pretends a default group of some size, in which this process has a rank."""

    def pretend(size, rank, backend="gloo"):
        known = {
            "is_initialized": lambda: True,
            "get_world_size": lambda: size,
            "get_rank": lambda: rank,
            "get_backend": lambda: backend,
        }
        for name, function in known.items():
            monkeypatch.setattr(members.dist, name, function)
        made = []
        monkeypatch.setattr(
            Ranks,
            "among",
            classmethod(lambda cls, who, *, bound: made.append((who, bound)) or "made"),
        )
        return made

    return pretend


def sharded_over(*ranks: int) -> nn.Module:
    """A model whose parameter lies on a mesh of these ranks."""
    model = nn.Linear(2, 2)
    model.weight.device_mesh = SimpleNamespace(mesh=torch.tensor(ranks).view(1, -1))
    return model


def test_one_process_is_alone(group):
    """Without a group, in a group of one, or where others are only made believe."""
    assert ranks_of(nn.Linear(2, 2)) is ALONE
    made = group(1, 0)
    assert ranks_of(nn.Linear(2, 2)) is ALONE
    made = group(8, 0, backend="fake")
    assert ranks_of(nn.Linear(2, 2)) is ALONE
    assert made == []


def test_whole_parameters_bind_nobody(group):
    """All of the group plan together, each for itself; modules that communicate bind them."""
    made = group(3, 1)
    ranks_of(nn.Linear(2, 2))
    ranks_of(nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2)))
    assert made == [((0, 1, 2), False), ((0, 1, 2), True)]


def test_sharded_parameters_bind_the_ranks_of_their_meshes(group):
    """In order, each once; who is on none of them is alone."""
    made = group(8, 3)
    model = nn.Sequential(sharded_over(6, 3), sharded_over(3, 2))
    assert mesh_ranks(model) == {2, 3, 6}
    ranks_of(model)
    assert made == [((2, 3, 6), True)]
    assert ranks_of(sharded_over(0, 1)) is ALONE


def test_a_model_that_was_sharded_after_it_was_planned_says_so(monkeypatch):
    """Its plan was made for whole parameters, by each rank for itself."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    data = torch.randn(8, 4), torch.randn(8, 4)
    assert not communicates(model)
    module = schedsim.rematerialize(model, data, "100%", nn.functional.mse_loss, effort=0.2)
    monkeypatch.setattr(plan_maker, "communicates", lambda model: True)
    with pytest.raises(schedsim.UnsupportedError, match="spread over ranks after it was planned"):
        module(*(tensor[:4] for tensor in data))
