"""Steps in which one rank alone does something new: a plan for it, or an error on all; no hang."""

from __future__ import annotations

import contextlib
import copy
from functools import partial
from unittest import mock

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rank_processes import run_ranks  # noqa: E402
from tiers import slow_where  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

WIDTH = 16
LOSS = nn.functional.mse_loss


class Block(nn.Module):
    """A layer whose forward reads an attribute and a value of its input."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.tau = 1.0

    def forward(self, x):
        """Same shape."""
        if x.flatten()[0] > 1e3:
            x = x * 1e-3
        return torch.tanh(self.linear(x) * self.tau)


def _halved(module, x):
    return torch.tanh(module.linear(x) * 0.5)


def spread(model, how):
    """`model` with sharded parameters, or inside of a wrapper that averages gradients."""
    if how == "averaged":
        return nn.parallel.DistributedDataParallel(model)
    for block in [*model, model]:
        spread_block(block)
    return model


def spread_block(block):
    """Shard what is not sharded yet."""
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(block, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))


@contextlib.contextmanager
def changed(name, model, module):
    """What one rank does to `model`, or to its steps, while the other goes on as before."""
    with contextlib.ExitStack() as stack:
        if name == "attribute":
            model[1].tau = 0.5
            stack.callback(setattr, model[1], "tau", 1.0)
        if name == "hook":
            stack.callback(model[1].register_forward_hook(lambda module, args, out: None).remove)
        if name == "forward":
            model[1].forward = partial(_halved, model[1])
            stack.callback(delattr, model[1], "forward")
        if name == "eval":
            module.eval()
            stack.callback(module.train)
        if name == "no_grad":
            stack.enter_context(torch.no_grad())
        yield


def _given(name, x, target):
    if name == "shape":
        return x[:-8], target[:-8]
    if name == "value":
        x = x.clone()
        x[0, 0] = 1e4
    return x, target


class Loop:
    """A planned model and the plain one, whose gradients are compared after each step."""

    def __init__(self, rank, how, level):
        torch.manual_seed(0)
        model = nn.Sequential(*(Block() for _ in range(3)))
        self.rank, self.how, self.level = rank, how, level
        self.models = [copy.deepcopy(model), model]
        self.plain = spread(self.models[0], how)
        torch.manual_seed(1 + rank)
        self.data = torch.randn(64, WIDTH), torch.randn(64, WIDTH)
        # Below full memory by blocks, where a schedule repeats what a plain step does not.
        budget = "93%" if (how, level) == ("sharded", "block") else "120%"
        if level == "in place":
            self.step = spread(model, how)
            self.module = model
            schedsim.rematerialize(self.step, self.data[0], budget, in_place=True, effort=0.2)
            return
        options = {"level": level, "effort": 0.2}
        if how == "sharded":
            spread(model, how)
        self.module = schedsim.rematerialize(model, self.data, budget, LOSS, **options)
        self.step = spread(self.module, how) if how == "averaged" else self.module

    def _loss(self, x, target, casts):
        with torch.autocast("cpu", torch.bfloat16, enabled=casts):
            return LOSS(self.step(x), target) if self.level == "in place" else self.step(x, target)

    def run(self, name):
        """Whether two steps are plain FSDP2's or DDP's, or the line with which they fail."""
        change = name if self.rank == 1 else ""
        x, target = _given(change, *self.data)
        try:
            for _ in range(2):
                if change == "replan":
                    self.module.replan("120%")
                self.models[1].zero_grad()
                with changed(change, self.models[1], self.module):
                    self._loss(x, target, change == "autocast").backward()
        except schedsim.SchedsimError as error:
            return error.message
        if name in ("no_grad", "autocast") and self.how == "sharded":
            return "trains"  # where plain FSDP2 hangs
        self.models[0].zero_grad()
        with changed(change, self.models[0], self.models[0]):
            with torch.autocast("cpu", torch.bfloat16, enabled=change == "autocast"):
                loss = LOSS(self.plain(x), target)
            loss.backward()
        pairs = zip(*(model.parameters() for model in self.models), strict=True)
        same = all(torch.allclose(_full(one.grad), _full(other.grad)) for one, other in pairs)
        return "trains" if same else "other gradients"

    def replace_block(self):
        """Another block, with other weights, in both models."""
        torch.manual_seed(5)
        block = Block()
        for model in self.models:
            model[1] = copy.deepcopy(block)
            spread_block(model[1])


def _full(gradient):
    return gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient


CHANGES = ["attribute", "hook", "forward", "shape", "value", "eval", "autocast"]


SOON = mock.patch("schedsim.validation.ranks.channel.MEETING_S", 1.0)


@SOON
def _changes(rank, how, level):
    loop = Loop(rank, how, level)
    names = ["", *CHANGES]
    if how == "sharded":
        names.append("no_grad")
    if level != "in place":
        names.append("replan")
    return {name: (loop.run(name), loop.run("") if name != "replan" else None) for name in names}


TOLD = {
    ("block", "eval"): "rank 1 evaluates, while rank 0 runs a step",
    ("block", "no_grad"): "rank 1 evaluates, while rank 0 runs a step",
    ("block", "autocast"): "rank 1 runs within autocast (cpu to bfloat16), while rank 0 runs "
    "outside of autocast",
    ("block", "replan"): "rank 0 goes on with an earlier plan than rank 1",
    ("in place", "no_grad"): "rank 1 runs without gradients, while rank 0 trains",
}
"""What ranks with sharded parameters raise at the start of a step: nobody waits for the other."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "level"),
    [
        ("sharded", "block"),
        ("sharded", "in place"),
        ("averaged", "op"),
        ("averaged", "block"),
        ("averaged", "in place"),
    ],
)
def test_one_rank_alone_changes_its_step(how, level):
    """It trains as without a plan, or both ranks fail at once; the next steps train."""
    rows = run_ranks(_changes, 2, how, level, timeout_s=120)
    for row in rows:
        for name, (found, after) in row.items():
            told = TOLD.get((level, name), "trains") if how == "sharded" else "trains"
            assert (name, found) == (name, told)
            assert after in ("trains", None)


@SOON
def _uneven(rank, level):
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(3)))
    torch.manual_seed(1 + rank)
    data = torch.randn(64, WIDTH), torch.randn(64, WIDTH)
    module = schedsim.rematerialize(model, data, "150%", LOSS, level=level, effort=0.2)
    step = nn.parallel.DistributedDataParallel(module)
    for number in range(3):
        model.zero_grad()
        if rank == 1 and number == 1:
            with step.no_sync():
                step(*data).backward()
        step(*data).backward()
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize("level", slow_where(["op", "block"], lambda level: level == "block"))
def test_one_rank_alone_accumulates(level):
    """Which its plan must count, while the other waits for it in the average of gradients."""
    one, other = run_ranks(_uneven, 2, level)
    assert all(map(torch.equal, one, other))


@SOON
def _applied(rank):
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(3)))
    data = torch.randn(64, WIDTH), torch.randn(64, WIDTH)
    options = {"level": "block", "effort": 0.2}
    plan = schedsim.rematerialize(model, data, "150%", LOSS, **options).plan
    module = schedsim.apply(model, plan, data, LOSS, shapes="plan")
    for number in range(3):
        size = 56 if (rank, number) == (1, 1) else 64
        model.zero_grad()
        module(*(tensor[:size] for tensor in data)).backward()
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad)  # as a loop may, without a wrapper
    return [p.grad for p in model.parameters()]


def test_one_rank_alone_meets_another_shape_after_a_plan_was_applied():
    """No rank is there to plan with: the others wait for its gradients."""
    one, other = run_ranks(_applied, 2, timeout_s=60)
    assert all(map(torch.equal, one, other))


def _replaced(rank):
    loop = Loop(rank, "sharded", "block")
    found = [loop.run("")]
    loop.replace_block()
    return [*found, loop.run(""), len(loop.module.plans)]


@pytest.mark.slow
def test_a_sharded_block_that_is_replaced_runs():
    """The plan was made of the former one, which ran on, in silence."""
    assert run_ranks(_replaced, 2) == [["trains", "trains", 1]] * 2
