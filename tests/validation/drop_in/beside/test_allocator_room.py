"""Room for what CUDA's allocator reserves; on a CPU, for gaps that are made up."""

from __future__ import annotations

import copy
import gc
import warnings
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.beside import allocator_room, reserved_looks  # noqa: E402
from schedsim.validation.drop_in.beside.allocator_room import AllocatorRoom  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.guards.plan_variants import PlainStepWarning  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import InfeasibleBudgetError  # noqa: E402

NUM_STEPS = 50


def deep_model():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(4))
    )


class Loop:
    """A model in place, on a device whose allocator adds `gap` bytes to what is requested."""

    def __init__(self, monkeypatch, gap, share=0.8, **options):
        self.model, self.x = deep_model(), torch.randn(256, 16)
        self.emptied, self.reserved = 0, []
        monkeypatch.setattr(allocator_room, "_has_gaps", lambda device: True)
        monkeypatch.setattr(reserved_looks, "empty_cache", self._empty)
        monkeypatch.setattr(reserved_looks, "reserved_bytes", lambda _: self._reserve(gap))
        # What is made after the budget was given would count beside the steps.
        self.plain = plain = copy.deepcopy(self.model)
        [reading] = AllocatorMeter().read(lambda: self.loss_of(plain).backward())
        resident = storage_bytes([*plain.parameters(), self.x])
        self.store_all = reading.peak_bytes
        self.budget = share if isinstance(share, str) else resident + int(share * self.store_all)
        schedsim.rematerialize(self.model, self.x, self.budget, in_place=True, effort=0.2)

    def _empty(self, _):
        self.emptied += 1

    def _reserve(self, gap):
        requested = self.session.peak_bytes - self.session._room.room_bytes
        self.reserved.append(gap(requested))
        return self.reserved[-1]

    @property
    def session(self):
        return session_in(self.model)

    def loss_of(self, model):
        return model(self.x).square().mean()

    def run(self):
        """Steps whose gradients are the plain ones; what was warned of."""
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(NUM_STEPS):
                self.model.zero_grad()
                self.loss_of(self.model).backward()
        self.plain.zero_grad()
        self.loss_of(self.plain).backward()
        rows = zip(self.model.parameters(), self.plain.parameters(), strict=True)
        assert all(torch.equal(mine.grad, its.grad) for mine, its in rows)
        return [str(it.message) for it in told if "allocator" in str(it.message)]


@pytest.mark.slow
def test_plans_leave_room_until_the_step_reserves_no_more_than_the_budget(monkeypatch):
    loop = Loop(monkeypatch, lambda requested: requested * 11 // 10)
    [line] = loop.run()
    assert "later steps are planned with room for it" in line
    assert loop.reserved[0] > loop.budget
    assert 0.9 * loop.budget < loop.reserved[-1] <= loop.budget
    assert loop.session.peak_bytes <= loop.budget
    report = schedsim.drop_in_report(loop.model)
    assert "are left to it" in report
    assert f"  reserved       {schedsim.units.format_bytes(loop.reserved[-1])}" in report
    assert loop.emptied <= 12


@pytest.mark.slow
def test_a_step_within_its_budget_is_looked_at_once(monkeypatch):
    loop = Loop(monkeypatch, lambda requested: requested)
    assert loop.run() == []
    assert (loop.emptied, loop.session._room.room_bytes) == (1, 0)


@pytest.mark.slow
def test_a_room_that_leaves_much_unused_becomes_smaller(monkeypatch):
    """Gaps that leap: large ones beside the first plan, none beside smaller ones."""
    loop = Loop(
        monkeypatch,
        lambda requested: requested * (13 if requested > 0.9 * loop.budget else 10) // 10,
    )
    assert len(loop.run()) == 1
    assert loop.session._room._num_smaller == 3
    assert 0.8 * loop.budget < loop.reserved[-1] <= loop.budget
    assert 0 < loop.session._room.room_bytes < 0.2 * loop.budget
    assert loop.emptied <= 12


@pytest.mark.slow
def test_a_share_is_one_of_what_is_requested(monkeypatch):
    loop = Loop(monkeypatch, lambda requested: 2 * requested, share="80%")
    assert loop.run() == []
    assert (loop.emptied, loop.reserved) == (0, [])


@pytest.mark.slow
def test_where_nothing_fits_beside_the_gaps_a_line_says_so_and_steps_run(monkeypatch):
    loop = Loop(monkeypatch, lambda requested: requested * 3)
    lines = loop.run()
    assert "no plan fits the budget beside what CUDA's allocator reserves" in lines[-1]
    assert "expandable_segments" in lines[-1]
    assert loop.session._room.room_bytes == 0
    assert loop.session.peak_bytes <= loop.budget


@pytest.mark.slow
def test_the_room_of_the_plan_that_reserves_least_stays(monkeypatch):
    """Where each plan that is tried reserves more than the budget, which does not depend on it."""
    most = {}
    loop = Loop(monkeypatch, lambda _: most["reserved"])
    most["reserved"] = loop.budget + 100
    lines = loop.run()
    assert "by each plan that was tried" in lines[-1]
    assert loop.session._room.room_bytes == 0
    assert loop.emptied == 2 * allocator_room._MOST_PLANS


@pytest.mark.parametrize(("fits", "left"), [(112, 10), (105, 0)])
def test_a_step_is_not_refused_for_the_room(monkeypatch, fits, left):
    """As more becomes resident: the room is that of an earlier plan then, or none."""
    plans = SimpleNamespace(
        room_bytes=0, budget_bytes=200, peak_bytes=200, is_share=False, plan_anew=lambda: None
    )
    told = []
    room = AllocatorRoom(plans, lambda line, kind: told.append((line, kind)))
    seen = iter((0, 30, 0))
    monkeypatch.setattr(room.looks, "ends", lambda budget: next(seen))
    for reserved in (195, 230):  # the first plan has left 10, and reserves no more than the budget
        room.looks.reserved_bytes = reserved
        plans.room_bytes = 10
        room.ends(is_whole=True)
    assert room.room_bytes == plans.room_bytes == 40

    times = {"forward_s": [1], "backward_s": [1]}
    chain = schedsim.Chain.from_arrays("one", 8, **times, output_bytes=[8], saved_bytes=[8])

    def plan():
        if 100 + plans.room_bytes > fits:
            schedsim.plan(chain, 1)
        return "a plan"

    assert room.beside(plan) == "a plan"
    assert plans.room_bytes == left
    assert "no plan fits the budget beside" in told[-1][0]
    fits = 0
    with pytest.raises(InfeasibleBudgetError):
        room.beside(plan)
    assert plans.room_bytes == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_budget_in_bytes_bounds_what_a_step_reserves():
    """Of layers whose tensors leave gaps in their segments."""
    torch.manual_seed(0)
    layers = (
        nn.Sequential(nn.Linear(1000, 4100), nn.GELU(), nn.Linear(4100, 1000)) for _ in "12345678"
    )
    model, x = nn.Sequential(*layers).cuda(), torch.randn(2050, 1000, device="cuda")

    def step():
        model.zero_grad()
        model(x).square().mean().backward()

    def reserved():
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(3):
            step()
        return torch.cuda.max_memory_reserved()

    most = reserved()
    resident = torch.cuda.memory_allocated()
    budget = int(resident + 0.75 * (most - resident))
    schedsim.rematerialize(model, x, budget, in_place=True, effort=0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", PlainStepWarning)
        for _ in range(NUM_STEPS):
            step()
    assert 0.7 * budget < reserved() <= budget
