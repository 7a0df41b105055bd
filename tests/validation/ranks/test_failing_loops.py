"""Loops in which one rank fails outside of what is planned, while others wait in a collective."""

from __future__ import annotations

import os
import sys
from unittest import mock

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rank_processes import run_ranks  # noqa: E402
from tiers import slow_where  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

LOSS = nn.functional.mse_loss
TOLD = "rank 1 ended by ValueError: the disk is full"


WIDTH = 16


class Block(nn.Module):
    """A layer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        """Same shape."""
        return torch.tanh(self.linear(x))


def made():
    """(model sharded over all ranks, input, target)."""
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(3)))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in [*model, model]:
        fully_shard(block, mesh=mesh)
    return model, torch.randn(256, WIDTH), torch.randn(256, WIDTH)


def _fail(*_):
    raise ValueError("the disk is full")


def _steps(rank, level, where):
    """Steps of a loop of which rank 1 leaves the third by an error, `where` it says."""
    model, x, target = made()
    if level == "in place":
        module = schedsim.rematerialize(model, x, "120%", in_place=True, effort=0.2)
    else:
        options = {"level": "block", "effort": 0.2}
        module = schedsim.rematerialize(model, (x, target), "120%", LOSS, **options)
    for number in range(4):
        fails = rank == 1 and number == 2
        out = module(x) if level == "in place" else None
        if fails and where == "backward":
            out.register_hook(_fail)
        loss = LOSS(out, target) if level == "in place" else module(x, target)
        if fails and where == "loss":
            _fail()
        loss.backward()
        if fails and where == "optimizer":
            _fail()
        total = loss.detach().clone()
        torch.distributed.all_reduce(total)  # the loop's own
        model.zero_grad()


def _ended(rank, level, where, exits):
    try:
        _steps(rank, level, where)
    except ValueError as error:  # what Python does with an error that nobody catches
        sys.excepthook(type(error), error, error.__traceback__)
        if exits:
            os._exit(3)
    except schedsim.validation.ranks.RankError as error:
        if exits:
            os._exit(0 if str(error) == TOLD else 4)
        return str(error)
    return None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "where"),
    slow_where(
        [
            ("in place", "loss"),
            ("in place", "backward"),
            ("in place", "optimizer"),
            ("block", "optimizer"),
        ],
        lambda row: row[1] == "loss",
    ),
)
def test_an_error_that_leaves_the_loop_reaches_ranks_in_any_collective(level, where):
    """In a backward that is PyTorch's own, in the loop's own all-reduce; with its message."""
    assert run_ranks(_ended, 2, level, where, False, timeout_s=60) == [TOLD, None]


@pytest.mark.slow
def test_the_message_is_there_before_the_connections_end():
    """In place of gloo's, which tells that one was closed."""
    found = run_ranks(_ended, 2, "in place", "backward", True, timeout_s=60, allow_exit=True)
    assert found == [0, 3]


SOON = {"FIRST_S": 0.2, "EVERY_S": 0.2, "STANDSTILL_S": 1.5}


@mock.patch.multiple("schedsim.validation.ranks.standstill", **SOON)
def _caught(rank):
    model, x, target = made()
    schedsim.rematerialize(model, x, "120%", in_place=True, effort=0.2)
    for number in range(4):
        try:
            loss = LOSS(model(x), target)
            if rank == 1 and number == 2:
                _fail()
            loss.backward()
        except ValueError:
            continue  # this batch is left out, on one rank alone
        except schedsim.validation.ranks.RankError as error:
            return str(error)
    return None


@pytest.mark.slow
def test_a_rank_that_leaves_a_step_out_is_told():
    """It waits to start the next step, and the other in a backward: both raise the same."""
    first, second = run_ranks(_caught, 2, timeout_s=60)
    assert first == second
    assert first == (
        "the ranks wait for each other: rank 0 waits in a collective (all-gather), "
        "rank 1 waits to start a step"
    )


@mock.patch.multiple("schedsim.validation.ranks.standstill", **SOON)
def _elsewhere(rank):
    model, x, target = made()
    teacher, _, _ = made()
    schedsim.rematerialize(model, x, "120%", in_place=True, effort=0.2)
    try:
        for number in range(4):
            out = model(x)
            if rank == 1 and number == 2:
                teacher(x)  # gathers, while the other reduces
            LOSS(out, target).backward()
    except schedsim.validation.ranks.RankError as error:
        return str(error)
    return None


@pytest.mark.slow
def test_ranks_in_different_collectives_are_told():
    """One evaluates another sharded model in the middle of a step."""
    first, second = run_ranks(_elsewhere, 2, timeout_s=60)
    assert first == second
    assert first.startswith("the ranks wait for each other: rank 0 waits in a collective (")
    assert "rank 1 waits in a collective (" in first


@mock.patch.multiple("schedsim.validation.ranks.standstill", **SOON)
def _leaves(rank, how):
    model, x, target = made()
    options = {"level": "block", "effort": 0.2}
    module = schedsim.rematerialize(model, (x, target), "120%", LOSS, **options)
    said = []
    for number in range(4):
        asks = rank == 1 and number == 1
        given = x.clone().requires_grad_() if asks and how != "second order" else x
        try:
            loss = module(given, target)
            loss.backward(create_graph=asks and how == "second order")
        except (schedsim.SchedsimError, schedsim.validation.ranks.RankError) as error:
            said.append(str(error))
            if rank == 1 and how != "goes on":
                break  # as a notebook, whose cell has ended
    return said, number


@pytest.mark.slow
def test_a_refused_input_of_one_rank_is_refused_on_all():
    """Before any of them is in a collective: the loop may go on."""
    (first, _), (second, last) = run_ranks(_leaves, 2, "goes on", timeout_s=60)
    assert first == [f"rank 1: {line}" for line in second]
    assert second == ["an input requires a gradient, which a schedule does not give"]
    assert last == 3


@pytest.mark.slow
def test_a_rank_that_begins_no_step_after_an_error_is_missed():
    """Others that go on hear by what it left."""
    (first, _), (second, _) = run_ranks(_leaves, 2, "stops", timeout_s=60)
    assert len(second) == 1
    assert first[0] == f"rank 1: {second[0]}"
    assert first[1].startswith(f"rank 1 left a step by UnsupportedError: {second[0]} (and began")


@pytest.mark.slow
def test_a_backward_refused_on_one_rank_reaches_all():
    """At once: others are in its collectives."""
    (first, _), (second, _) = run_ranks(_leaves, 2, "second order", timeout_s=60)
    assert second[0].startswith("create_graph=True")
    assert first[0] == f"rank 1 failed to run a step: UnsupportedError: {second[0]}"


def _averaged(rank, folder):
    """Steps of lengths that differ by rank, in DistributedDataParallel; one of rank 1 fits not."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(3)))
    lengths = ((256, 255), (64, 256))[rank]
    data = [(torch.randn(size, WIDTH), torch.randn(size, WIDTH)) for size in lengths]
    module = schedsim.rematerialize(model, data[0], "120%", LOSS, level="block", effort=0.2)
    wrapper = nn.parallel.DistributedDataParallel(module)
    try:
        for x, target in data:
            wrapper(x, target).backward()
    except Exception as error:  # what Python does with an error that nobody catches
        with (folder / f"{rank}").open("w") as file, mock.patch.object(sys, "stderr", file):
            sys.excepthook(type(error), error, error.__traceback__)
    os._exit(3)


def test_a_rank_that_loses_an_averaged_step_says_why(tmp_path):
    """It waits in C++, and has gloo's error alone: what the other has said stands below it."""
    assert run_ranks(_averaged, 2, tmp_path, timeout_s=60, allow_exit=True) == [3, 3]
    first, second = ((tmp_path / f"{rank}").read_text() for rank in range(2))
    assert "InfeasibleBudgetError" in second.splitlines()[-2]
    assert "onnection" in first
    assert "error: rank 1 ended by InfeasibleBudgetError: a step of Sequential does not" in first
