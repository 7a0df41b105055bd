"""A model sharded by FSDP2 in place, in a group of one rank; several: tests/validation/ranks."""

from __future__ import annotations

import contextlib
import gc
import weakref
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rank_processes import run_ranks  # noqa: E402
from residual_layer import ResidualLayer  # noqa: E402
from schedsim.validation.drop_in.beside import allocator_room, reserved_looks  # noqa: E402
from schedsim.validation.drop_in.gathered_session import (  # noqa: E402
    GatheredSession,
    refuse_other_communication,
)
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.guards.plan_variants import PlainStepWarning, ReplannedWarning  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from schedsim.validation.torch_private import sharded_groups as private  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.units import format_bytes  # noqa: E402


class Counted(nn.Sequential):
    """Three layers that count their calls."""

    def __init__(self):
        super().__init__(*(ResidualLayer(16) for _ in range(3)))
        self.calls = 0

    def forward(self, x):
        """Same shape."""
        self.calls += 1
        return super().forward(x)


class Exchanges:
    """Ranks of which this is the only one, with the number of their exchanges."""

    num = 0
    members = (0,)

    def gather_from(self, what, work):
        """The result of `work`."""
        self.num += 1
        return [work()]

    def running(self, what):
        """Around a step of this rank."""
        return contextlib.nullcontext()

    telling = running


def step(model, x):
    """Forward and backward."""
    model(x).square().mean().backward()


def waiting(model):
    """Gradients that no step has reduced."""
    return [t for state in private.states(model) for t in private.held_gradients(state)]


def _scheduled_inside(rank):
    from torch.distributed.fsdp import fully_shard

    model = Counted()
    for layer in [*model, model]:
        fully_shard(layer)
    x = torch.randn(256, 16)
    model.set_requires_gradient_sync(False)
    found = schedsim.rematerialize(model, x, "80%", in_place=True, effort=0.2)
    assert found is model
    assert not waiting(model)
    assert model.calls == 0
    model.set_requires_gradient_sync(True)
    session = session_in(model)
    assert isinstance(session, GatheredSession)
    assert "no plan yet" in schedsim.drop_in_report(model)

    for _ in range(8):
        model.zero_grad()
        step(model, x)
    model.zero_grad()
    resident = storage_bytes([list(model.parameters()), x])
    [reading] = AllocatorMeter().read(partial(step, model, x))
    measured = resident + reading.peak_bytes
    assert session.peak_bytes <= session.budget_bytes
    assert 0.99 * session.peak_bytes <= measured <= 1.01 * session.peak_bytes
    assert session.plan is not None
    assert len(session.numbers) == 3
    report = schedsim.drop_in_report(model)
    assert "on this rank" in report
    assert "plain step's to the bit" in report

    # Where an earlier step is open, which the cycle collector may decide, ranks still exchange.
    session.ranks = Exchanges()
    kept = [model(x), model(x)]
    assert session.ranks.num == len(kept)
    del kept

    model.set_requires_gradient_sync(False)
    step(model, x)
    schedsim.restore(model)
    assert waiting(model)
    with pytest.raises(schedsim.UnsupportedError, match="wait for a step that reduces them"):
        schedsim.rematerialize(model, x, "80%", in_place=True)

    freed = weakref.ref(model)
    del model, found, session, layer
    gc.collect()
    assert freed() is None


@pytest.mark.slow
def test_ops_inside_of_sharded_blocks_are_scheduled():
    """The peak is the predicted one, within the budget; the model is left as it was, and freed."""
    run_ranks(_scheduled_inside, 1)


def _sharded_later(rank):
    from torch.distributed.fsdp import fully_shard

    model, x = ResidualLayer(16), torch.ones(1, 16)
    schedsim.rematerialize(model, x, "1GiB", in_place=True, check="never")
    fully_shard(model)
    with pytest.raises(schedsim.UnsupportedError, match="after it got its budget") as error:
        model(x)
    assert "shard it first" in error.value.hint


class Towers(nn.Module):
    """Two rows of layers of the same input."""

    def __init__(self):
        super().__init__()
        self.rows = nn.ModuleList(
            nn.Sequential(*(ResidualLayer(16) for _ in range(4))) for _ in range(2)
        )

    def forward(self, x):
        """An output of each."""
        return [row(x) for row in self.rows]


def _one_after_the_other(model, x):
    one, other = model(x)
    one.square().mean().backward()
    other.square().mean().backward()


def _some_steps(model, x):
    for _ in range(3):
        model.zero_grad()
        _one_after_the_other(model, x)


def _changed_order(rank):
    from torch.distributed.fsdp import fully_shard

    model = Towers()
    for layer in [*model.rows[0], *model.rows[1], model]:
        fully_shard(layer)
    x = torch.randn(512, 16)
    schedsim.rematerialize(model, x, "75%", in_place=True, effort=0.2)
    session = session_in(model)
    for _ in range(9):
        model.zero_grad()
        sum(out.square().mean() for out in model(x)).backward()
    assert session.numbers
    with pytest.warns(PlainStepWarning, match="all steps keep least from now on"):
        _some_steps(model, x)
    for _ in range(2):
        model.zero_grad()
        resident = storage_bytes([list(model.parameters()), x])
        [reading] = AllocatorMeter().read(partial(_one_after_the_other, model, x))
        assert resident + reading.peak_bytes <= session.budget_bytes


@pytest.mark.slow
def test_steps_in_another_order_than_was_planned_keep_least():
    """Two losses, one after the other: the budget is for a backward from the last block on."""
    run_ranks(_changed_order, 1)


@pytest.mark.slow
def test_a_model_that_is_sharded_after_it_got_its_budget_is_refused():
    """What was planned is a step that gathers nothing."""
    run_ranks(_sharded_later, 1)


def _optimizer_of_shares(rank):
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(*(ResidualLayer(64) for _ in range(3)))
    for layer in [*model, model]:
        fully_shard(layer)
    x = torch.randn(1, 64)
    schedsim.rematerialize(model, x, 2_100_000, in_place=True, effort=0.2, check="never")
    optimizer = torch.optim.Adadelta(model.parameters(), foreach=True)

    def train():
        for _ in range(6):
            optimizer.zero_grad()
            step(model, x)
            optimizer.step()

    with pytest.warns(PlainStepWarning, match=r"Adadelta.step takes .*; foreach=False copies one"):
        train()
    shares = list(model.parameters())
    held = [shares, x, [share.grad for share in shares], dict(optimizer.state)]
    [reading] = AllocatorMeter().read(optimizer.step)
    peak_bytes = storage_bytes(held) + reading.peak_bytes
    assert f"Adadelta.step takes {format_bytes(peak_bytes)}" in schedsim.drop_in_report(model)
    assert session_in(model).peak_bytes < 2_100_000 < peak_bytes


@pytest.mark.slow
def test_the_step_of_an_optimizer_of_shares_is_measured():
    """To the byte; where it takes more than the budget, a line says so."""
    run_ranks(_optimizer_of_shares, 1)


def _held_forward(rank):
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(*(ResidualLayer(16) for _ in range(3)))
    options = {"budget": "1GiB", "effort": 0.2}
    for layer in model:
        layer.compile(backend="schedsim", options=options)
        fully_shard(layer)
    fully_shard(model)
    x = torch.randn(64, 16)
    step(model, x)
    held = model(x)

    def train():
        for _ in range(24):
            step(model, x)

    with pytest.warns(ReplannedWarning, match="held through many steps without its backward"):
        train()
    assert held.requires_grad
    assert session_in(model).peak_bytes is not None


@pytest.mark.slow
def test_a_forward_that_the_loop_holds_ends_no_step_for_good():
    """What it keeps counts as resident, and later steps are planned."""
    run_ranks(_held_forward, 1)


def _with_gaps(rank):
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(*(ResidualLayer(16) for _ in range(4)))
    for layer in [*model, model]:
        fully_shard(layer)
    x = torch.randn(256, 16)
    step(model, x)
    resident = storage_bytes([list(model.parameters()), [p.grad for p in model.parameters()], x])
    [reading] = AllocatorMeter().read(partial(step, model, x))
    budget = resident + int(0.8 * reading.peak_bytes)
    schedsim.rematerialize(model, x, budget, in_place=True, effort=0.2)
    session = session_in(model)
    reserved = []

    def with_gaps(_):
        reserved.append((session.peak_bytes - session._room.room_bytes) * 11 // 10)
        return reserved[-1]

    def train():
        for _ in range(40):
            step(model, x)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(allocator_room, "_has_gaps", lambda device: True)
        patch.setattr(reserved_looks, "empty_cache", lambda device: None)
        patch.setattr(reserved_looks, "reserved_bytes", with_gaps)
        with pytest.warns(ReplannedWarning) as told:
            train()
    lines = [str(it.message) for it in told if "allocator" in str(it.message)]
    assert len(lines) == 1
    assert "later steps are planned with room for it" in lines[0]
    assert reserved[0] > budget, (budget, reserved)
    assert 0.8 * budget < reserved[-1] <= budget, (budget, session._room.room_bytes, reserved)
    assert session.peak_bytes <= budget
    assert "are left to it" in schedsim.drop_in_report(model)
    [reading] = AllocatorMeter().read(partial(step, model, x))
    assert resident + reading.peak_bytes <= 1.01 * (budget - session._room.room_bytes)


@pytest.mark.slow
def test_a_rank_leaves_room_for_what_its_allocator_reserves():
    """Each rank for itself; on a CPU, for gaps that are made up."""
    run_ranks(_with_gaps, 1)


def test_ops_that_communicate_are_refused():
    """No graph shows where, so that schedules could not keep the order of their messages."""
    with pytest.raises(schedsim.UnsupportedError, match=r"communicate \(SyncBatchNorm\)"):
        refuse_other_communication(nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2)))
    refuse_other_communication(nn.Linear(2, 2))
