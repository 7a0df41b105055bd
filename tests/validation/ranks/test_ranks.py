"""Ranks of one group: they measure together, follow one plan, and fail together."""

from __future__ import annotations

from contextlib import nullcontext
from unittest import mock

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rank_processes import run_ranks  # noqa: E402
from schedsim.validation.ranks.one_plan import plan_hash  # noqa: E402
from schedsim.validation.ranks.ranks import ALONE  # noqa: E402
from tiers import slow_where  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

LOSS = nn.functional.mse_loss


def sharded_model(num=4, width=16, fails_on=None):
    """A line of blocks, each sharded over all ranks; one may fail in its forward."""
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(width) for _ in range(num)))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if fails_on == dist.get_rank():
        model[num // 2].fails_in = 3
    return model


class Block(nn.Module):
    """A layer that can be told to fail in one of its calls to come."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.fails_in = None
        self.fails_backward = False

    def forward(self, x):
        """Two ops."""
        if self.fails_in is not None:
            self.fails_in -= 1
            if self.fails_in <= 0:
                raise ValueError("the disk is full")
        out = torch.tanh(self.linear(x))
        if self.fails_backward and out.requires_grad:
            out.register_hook(_full_disk)
        return out


def _full_disk(_):
    raise ValueError("the disk is full")


def data(num=64, width=16):
    """Input and target."""
    return torch.randn(num, width), torch.randn(num, width)


def planned(model, inputs, budget="95%", **options):
    """At the block level."""
    options = {"level": "block", "effort": 0.2, **options}
    return schedsim.rematerialize(model, inputs, budget, LOSS, **options)


def said(function):
    """The message of the error that `function` raises."""
    try:
        function()
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def _one_plan(rank, folder):
    import os

    # Each has its own cache of times, and on one of them nothing but replaying steps is run.
    os.environ["SCHEDSIM_CACHE_DIR"] = f"{folder}/cache{rank}"
    roomy = "schedsim.validation.block_level.block_timing.device_memory_bytes"
    with mock.patch(roomy, return_value=1) if rank == 1 else nullcontext():
        return _plans(rank)


def _plans(rank):
    model = sharded_model()
    module = planned(model, data())
    found = [plan_hash(module.plan)]
    module(*data()).backward()
    # Other shapes on each rank: one plan, which fits the larger.
    other = data(48 - 16 * rank)
    module(*other).backward()
    found.append(plan_hash(module.last_plan))
    module.replan("100%")
    module(*data()).backward()
    found.append(plan_hash(module.plan))
    plan = module.plan
    applied = schedsim.apply(model, plan, data(), LOSS)
    applied(*data()).backward()
    found.append(plan_hash(applied.plan))
    if rank == 1:
        applied.replan("95%")
    return found, said(lambda: applied(*data()))


def test_all_ranks_follow_one_plan(tmp_path):
    """Times, free memory and shapes differ by rank; plans do not, and nothing hangs.

    A plan changed on one rank alone is an error on both.
    """
    (first, error), (second, other) = run_ranks(_one_plan, 2, str(tmp_path))
    assert first == second
    assert first[2] == first[3]  # applied as it was
    assert error == other
    assert "rank 0 goes on with an earlier plan than rank 1" in error[1]


def _least_budget(rank):
    model = sharded_model()
    most = planned(model, data(), "100%").plan.peak_bytes
    module = planned(model, data(), most - 4096 * rank)
    failed = said(lambda: planned(model, data(), 1000 if rank else most))
    again = planned(model, data(), most).plan.budget_bytes
    return most, module.plan.budget_bytes, failed, again


@pytest.mark.slow
def test_the_smallest_budget_is_that_of_all():
    """Also where it is too small: then no rank has a plan, and another try may be made."""
    rows = run_ranks(_least_budget, 2)
    for most, budget, failed, again in rows:
        assert budget == most - 4096
        assert failed[0] == "InfeasibleBudgetError"
        assert again == most
    assert rows[0] == rows[1]


def _failing(rank, where):
    if where == "arguments":
        return said(lambda: planned(sharded_model(), data(), level="blok" if rank else "block"))
    if where == "inputs":
        return said(lambda: planned(sharded_model(), data(64, 16 - 3 * rank)))
    model = sharded_model(fails_on=1)
    return said(lambda: planned(model, data())), said(lambda: planned(model, data()))


@pytest.mark.parametrize("where", ["arguments", "inputs"])
def test_a_rank_that_fails_before_it_measures_fails_all(where):
    """The others say what it said."""
    first, second = run_ranks(_failing, 2, where)
    assert first[0] in (second[0], "RankError")
    assert second[1] in first[1]
    assert "rank 1" in first[1]


def test_a_rank_that_fails_in_the_middle_of_a_model_fails_all():
    """The other stands in the gathering of the next block, and is called out of it.

    A collective is left open, so that the same group can plan no more, and says so.
    """
    first, second = run_ranks(_failing, 2, "model")
    assert second[0] == ("ValueError", "the disk is full")
    assert first[0] == (
        "RankStoppedError",
        "rank 1 failed to measure: ValueError: the disk is full",
    )
    for row in (first, second):
        assert "start again" in row[1][1]


def _failing_run(rank, where):
    model = sharded_model()
    if where == "in place":
        schedsim.rematerialize(model, data(256)[0], "100%", in_place=True, effort=0.2)
        module = model
    else:
        module = planned(model, data(), "90%")

    def step():
        inputs = data() if where != "in place" else data(256)[:1]
        module(*inputs).sum().backward()

    def watched():
        with schedsim.watch(module):
            step()

    step()
    if rank == 1:
        model[2].fails_in = None if where == "backward" else 1
        model[2].fails_backward = where == "backward"
    found = [said(watched if where == "watch" else step)]
    model[2].fails_in, model[2].fails_backward = None, False
    return [*found, said(step)]


@pytest.mark.parametrize(
    "where",
    slow_where(["forward", "backward", "watch", "in place"], lambda where: where != "backward"),
)
def test_a_rank_that_fails_in_a_step_fails_all(where):
    """The other stands in a collective, and hears why within seconds; not from gloo, if at all.

    Whoever catches the error and goes on is told to start again.
    """
    first, second = run_ranks(_failing_run, 2, where, timeout_s=120)
    assert second[0] == ("ValueError", "the disk is full")
    assert first[0] == TOLD
    for row in (first, second):
        assert row[1][0] == "RankError"
        assert "start again" in row[1][1]


TOLD = ("RankError", "rank 1 failed to run a step: ValueError: the disk is full")


def _ending(rank):
    import os
    import sys

    model = sharded_model()
    module = planned(model, data(), "90%")
    module(*data()).backward()
    if rank == 0:
        found = said(lambda: module(*data()).backward())
        sys.stderr.write(f"{found}\n")
        os._exit(0 if found == TOLD else 1)
    model[2].fails_in = 1
    try:
        module(*data()).backward()
    except ValueError:
        os._exit(3)  # its connections end at once


@pytest.mark.slow
def test_the_last_words_of_a_rank_that_ends_reach_the_others():
    """In place of gloo's message that a connection was closed."""
    assert run_ranks(_ending, 2, timeout_s=120, allow_exit=True) == [0, 3]


def _failing_loss(rank):
    def loss(output, target):
        if rank == 1:
            raise ValueError("the disk is full")
        return LOSS(output, target)

    model = nn.Sequential(*(Block(16) for _ in range(3)))
    return said(lambda: schedsim.rematerialize(model, data(), "95%", loss, effort=0.2))


@pytest.mark.slow
def test_a_rank_whose_loss_fails_on_the_way_to_a_capture_fails_all():
    """The others, which are further on, do not try again by blocks: nobody would come."""
    first, second = run_ranks(_failing_loss, 2)
    assert second == ("ValueError", "the disk is full")
    message = "rank 1 failed to plan a step: ValueError: the disk is full"
    assert first == ("RankStoppedError", message)


def test_one_process_waits_for_nobody():
    """Its own is what all have, its work is done at once, and its errors are its own."""
    assert ALONE.alone
    assert ALONE.is_first
    assert not ALONE.bound
    assert ALONE.gather(3) == [3]
    assert ALONE.gather_from("measure", lambda: 4) == [4]
    assert ALONE.from_first("plan") == "plan"
    assert ALONE.largest((1, 5), (0.5,)) == ([1, 5], [0.5])
    assert ALONE.all(True)
    assert not ALONE.all(False)
    ALONE.same("compare", {"budget": 3})
    ALONE.awaited("plan")
    assert ALONE.together("plan", lambda: "done", runs_model=True) == "done"
    with pytest.raises(KeyError):
        ALONE.together("plan", lambda: {}["missing"])
