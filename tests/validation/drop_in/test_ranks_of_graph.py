"""Graphs of the backend whose tensors are spread: which ranks run them, and what they say first."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rank_processes import run_ranks  # noqa: E402
from schedsim.validation.drop_in.backend import session_of  # noqa: E402
from schedsim.validation.drop_in.ranks_of_graph import RanksOfGraph  # noqa: E402


def test_a_graph_whose_tensors_are_whole_is_run_by_each_rank_alone():
    """Nothing is exchanged, and nobody waits."""
    session = session_of({"budget": "1GB"})
    alone = RanksOfGraph.of([torch.ones(2)], session)
    with alone.tracing(), alone.running([torch.ones(2)]):
        assert session.ranks.alone


def _evaluates(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
    parallelize_module(model, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel()})
    step = torch.compile(model, backend="schedsim", options={"budget": "1GB"})
    x = torch.randn(4, 8)
    step(x).sum().backward()
    with torch.no_grad():
        step(x)
    try:
        with torch.set_grad_enabled(rank == 0):
            step(x)
    except Exception as error:
        return str(error)
    return None


@pytest.mark.slow
def test_a_rank_that_evaluates_while_another_trains_is_told_of():
    """On both, before either sends anything."""
    for said in run_ranks(_evaluates, 2, timeout_s=60):
        assert said == "rank 1 runs without gradients, while rank 0 trains"
