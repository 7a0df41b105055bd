"""Planned steps of several ranks beside the same steps without a plan: gradients to the bit."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rank_processes import RankProcessError, run_ranks  # noqa: E402
from spread_models import SPLIT, WIDTH, Block, loss_of, made  # noqa: E402
from tiers import slow_where  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

STEPS = 4


def _local(gradient):
    return gradient.to_local() if hasattr(gradient, "to_local") else gradient


def _same(plain, planned):
    pairs = zip(plain.parameters(), planned.parameters(), strict=True)
    return all(torch.equal(_local(one.grad), _local(other.grad)) for one, other in pairs)


def _optimizers(*models):
    return [torch.optim.AdamW(model.parameters(), lr=1e-3) for model in models]


def _length(how, rank, step):
    """How many of 256 rows a rank has in a step."""
    return 256 - (32 * ((rank + step) % 3) if how == "uneven" else 0)


def _by_blocks(rank, kind, how, budget):
    """Whether the gradients of each step are those of the plain one."""
    with loss_of(kind):
        plain, _, data, loss = made(kind)
        model, *_ = made(kind)
        if kind not in SPLIT:  # where ranks read data of their own
            torch.manual_seed(rank // 2 if kind == "split and sharded" else rank)
            data = [one[torch.randperm(len(one))] for one in data]
        module = schedsim.rematerialize(model, data, "100%", loss, level="block", effort=0.2)
        module.replan(budget)
        optimizers, found = _optimizers(plain, model), []
        for step in range(STEPS):
            x, target = (one[: _length(how, rank, step)] for one in data)
            for _ in range(2 if how == "accumulated" else 1):
                loss(plain(x), target).backward()
                module(x, target).backward()
            found.append(_same(plain, model))
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
        return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "how", "budget", "num_ranks"),
    [
        ("sharded", "uneven", "100%", 2),
        ("sharded", "accumulated", "90%", 2),
        ("tensor parallel", "", "90%", 2),
        ("sequence parallel", "accumulated", "90%", 2),
        ("loss parallel", "", "90%", 2),
        ("replicated", "accumulated", "90%", 4),
        ("split and sharded", "", "90%", 4),
        ("split and sharded", "accumulated", "90%", 4),
    ],
)
def test_blocks_of_ranks_have_the_gradients_of_the_plain_step(kind, how, budget, num_ranks):
    """FSDP2, HSDP, tensor parallelism, and FSDP2 with it; accumulated, and of uneven lengths."""
    for found in run_ranks(_by_blocks, num_ranks, kind, how, budget):
        assert found == [True] * STEPS


class Parted(Block):
    """A block that torch.compile takes apart, if it is told to."""

    def __init__(self, apart):
        super().__init__()
        self.apart = apart

    def forward(self, x):
        """Same shape."""
        if self.apart:
            torch._dynamo.graph_break()
        return super().forward(x)


def _spread(kind, apart=False):
    """(the model, what is called)."""
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(*(Parted(apart and i == 1) for i in range(4)))
    if kind == "averaged":
        return model, nn.parallel.DistributedDataParallel(model)
    size = dist.get_world_size()
    shape = (2, size // 2) if kind == "replicated" else (size,)
    names = ("replicate", "shard")[-len(shape) :]
    for module in [*model, model]:
        fully_shard(module, mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))
    return model, model


def _partly(kind, model, called, last):
    """The context of a micro-batch whose gradients are reduced if it is the `last`."""
    if kind == "averaged":
        return nullcontext() if last else called.no_sync()
    model.set_requires_gradient_sync(last)
    return nullcontext()


def _in_a_loop(rank, kind, how, budget, door):
    """Whether the gradients of each step are those of the plain one."""
    apart = how == "other graphs" and rank == 1
    (plain, plain_call), (model, call) = _spread(kind, apart), _spread(kind, apart)
    torch.manual_seed(1 + rank)
    x, target = torch.randn(256, WIDTH), torch.randn(256, WIDTH)
    if door == "backend":
        options = {"budget": budget, "effort": 0.2}
        call = torch.compile(call, backend="schedsim", options=options)
    else:
        schedsim.rematerialize(call, x, budget, in_place=True, effort=0.2)
    optimizers, found = _optimizers(plain, model), []
    for step in range(STEPS):
        rows = _length(how, rank, step)
        num_micro = 2 if how in ("accumulated", "reduced at last") else 1
        for one, called in ((plain, plain_call), (model, call)):
            for micro in range(num_micro):
                last = micro == num_micro - 1 or how != "reduced at last"
                with _partly(kind, one, called, last):
                    nn.functional.mse_loss(called(x[:rows] + micro), target[:rows]).backward()
        found.append(_same(plain, model))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return found


@pytest.mark.parametrize(
    ("kind", "how", "budget", "door", "num_ranks"),
    slow_where(
        [
            ("sharded", "reduced at last", "120%", "in place", 2),
            ("sharded", "accumulated", "95%", "in place", 2),
            ("sharded", "uneven", "100%", "in place", 2),
            ("sharded", "other graphs", "100%", "in place", 2),
            ("replicated", "accumulated", "95%", "in place", 4),
            ("averaged", "reduced at last", "120%", "in place", 2),
            # DDP packs gradients in the order in which they come: sums of more than two ranks are
            # then rounded otherwise.
            ("averaged", "uneven", "120%", "in place", 2),
            ("averaged", "other graphs", "120%", "backend", 2),
            ("averaged", "other graphs", "120%", "backend", 4),
        ],
        lambda row: row[1:] != ("other graphs", "120%", "backend", 2),
    ),
)
@pytest.mark.slow
def test_loops_of_ranks_have_the_gradients_of_the_plain_loop(kind, how, budget, door, num_ranks):
    """In place and as a backend, also where a rank's model is taken apart into more graphs."""
    for found in run_ranks(_in_a_loop, num_ranks, kind, how, budget, door):
        assert found == [True] * STEPS


class Ending(torch.autograd.Function):
    """The identity, in whose backward the process of a rank ends once it `is_near`."""

    is_near = False

    @staticmethod
    def forward(ctx, x):
        """The same."""
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        """The same, or no more."""
        if Ending.is_near:
            os._exit(7)
        return gradient.clone()


class Mortal(Block):
    """A block with such a backward."""

    def forward(self, x):
        """Same shape."""
        return Ending.apply(super().forward(x))


def _ending(rank, kind, level):
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(*(Mortal() for _ in range(4)))
    if kind == "sharded":
        for module in [*model, model]:
            fully_shard(module, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    x, target = torch.randn(64, WIDTH), torch.randn(64, WIDTH)
    loss = nn.functional.mse_loss
    if level == "in place":
        called = model if kind == "sharded" else nn.parallel.DistributedDataParallel(model)
        schedsim.rematerialize(called, x, "120%", in_place=True, effort=0.2)
        step = lambda: loss(called(x), target)  # noqa: E731
    else:
        module = schedsim.rematerialize(model, (x, target), "120%", loss, level=level, effort=0.2)
        called = module if kind == "sharded" else nn.parallel.DistributedDataParallel(module)
        step = lambda: called(x, target)  # noqa: E731
    for number in range(4):
        Ending.is_near = number == 3 and rank == 1
        step().backward()
        model.zero_grad()


@pytest.mark.parametrize(
    ("kind", "level", "num_ranks"),
    slow_where(
        [
            ("sharded", "block", 2),
            ("sharded", "in place", 2),
            ("sharded", "in place", 4),
            ("averaged", "block", 4),
            ("averaged", "in place", 2),
        ],
        lambda row: row != ("sharded", "in place", 2),
    ),
)
@pytest.mark.slow
def test_a_rank_that_dies_in_the_backward_is_not_waited_for(kind, level, num_ranks):
    """Its process ends without a word: the others raise what the group says, and soon."""
    began = time.monotonic()
    with pytest.raises(RankProcessError, match="rank 0 ended with 1") as caught:
        run_ranks(_ending, num_ranks, kind, level)
    assert "the ranks hang" not in str(caught.value)
    assert "Error" in str(caught.value)
    assert time.monotonic() - began < 150
