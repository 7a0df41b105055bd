"""Schedules for adjoint codes: run by an executor of the protocol, and by pyadjoint itself."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

pytest.importorskip("checkpoint_schedules", reason="checkpoint_schedules is not installed")

from adjoint_protocol import Executor, plain_gradient
from checkpoint_schedules import (
    MixedCheckpointSchedule,
    StorageType,
    TwoLevelCheckpointSchedule,
)
from checkpoint_schedules.mixed import optimal_steps_mixed
from checkpoint_schedules.multistage import n_advance

from schedsim.adjoint import OnlineSchedule, Schedule
from schedsim.errors import SchedsimError

X0 = np.linspace(-1, 1, 5)


def forwards_of(schedule):
    """How many steps a schedule takes forward."""
    return sum(len(one) for one in schedule if type(one).__name__ == "Forward")


# Forwards a step of 1000, as Mixed takes them, by number of snapshots.
MIXED = {5: 6.828, 10: 3.921, 20: 2.823, 40: 2.142, 60: 1.958, 80: 1.932}


@pytest.mark.parametrize("snapshots", MIXED)
def test_a_thousand_equal_steps_are_as_good_as_mixed(snapshots):
    """The storage model is the same there, and Mixed optimal: no more, and by the proof no less."""
    schedule = Schedule(1000, snapshots)
    assert schedule.optimal
    assert schedule.forward_s == forwards_of(schedule)
    assert schedule.forward_s / 1000 <= MIXED[snapshots]


def test_small_numbers_of_steps_are_as_good_as_mixed():
    """All lengths to 40, all numbers of snapshots."""
    for n in range(2, 41, 3):
        for snapshots in range(1, n):
            assert Schedule(n, snapshots).forward_s == optimal_steps_mixed(n, snapshots)


@pytest.mark.parametrize(("n", "snapshots"), [(1, 0), (2, 1), (7, 2), (40, 5), (40, 39)])
def test_gradients_are_those_of_the_plain_adjoint(n, snapshots):
    """To the bit, within the snapshots, and by Taylor's test."""
    executor = Executor(Schedule(n, snapshots), X0, n)
    value, gradient = executor.run()
    assert (value, *gradient) == (plain_gradient(X0, n)[0], *plain_gradient(X0, n)[1])
    assert executor.peak[StorageType.RAM] <= snapshots
    assert executor.forwards.sum() == Schedule(n, snapshots).forward_s
    direction, rests = np.cos(X0), []
    for h in (1e-2, 5e-3, 2.5e-3):
        moved = plain_gradient(X0 + h * direction, n)[0]
        rests.append(abs(moved - value - h * gradient @ direction))
    orders = np.log2(np.divide(rests[:-1], rests[1:]))
    assert orders.min() > 1.9


def uneven(seed):
    """A chain of 40 steps whose sizes and times differ tenfold, as with adaptive meshes."""
    rng = np.random.default_rng(seed)
    n = 40
    level = np.exp(np.cumsum(rng.normal(0, 0.3, n)) % 2.3)
    restart = np.maximum(1, (4 * level).astype(int))
    adjoint = np.maximum(1, (4 * level * rng.choice([0.5, 1, 3])).astype(int))
    return n, restart, adjoint, level * rng.uniform(0.8, 1.2, n)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Numba not available")
def test_better_than_mixed_on_50_chains_that_are_not_uniform(monkeypatch):
    """The same memory: Mixed has as many snapshots of the largest size as fit in it."""
    monkeypatch.setattr("checkpoint_schedules.mixed.numba", None)  # it would compile for seconds
    better = 0
    for seed in range(50):
        n, restart, adjoint, forward_s = uneven(seed)
        largest = max(restart.max(), adjoint.max())
        snapshots = 4 + seed % 12
        ram = int(largest * snapshots)
        schedule = Schedule(
            n, ram, restart_bytes=restart, adjoint_bytes=adjoint, forward_s=forward_s
        )
        theirs = Executor(MixedCheckpointSchedule(n, snapshots, storage=StorageType.RAM), X0, n)
        theirs.run()
        ours = Executor(schedule, X0, n, restart, adjoint)
        ours.run()
        assert ours.forwards @ forward_s == pytest.approx(schedule.forward_s)
        assert ours.peak[StorageType.RAM] <= ram
        better += schedule.forward_s < theirs.forwards @ forward_s * (1 - 1e-9)
        assert schedule.optimal
    assert better == 50


def test_a_disk_takes_what_it_is_worth():
    """Bytes and seconds are the plan's; a slow disk is left alone, a free one repeats nothing."""
    n, restart, adjoint, forward_s = uneven(3)
    sizes = {"restart_bytes": restart, "adjoint_bytes": adjoint, "forward_s": forward_s}
    ram = int(4 * max(restart.max(), adjoint.max()))
    schedule = Schedule(n, ram, **sizes, disk=(2e-3, 1e-3))
    executor = Executor(schedule, X0, n, restart, adjoint)
    executor.run()
    seconds = executor.forwards @ forward_s
    seconds += executor.moved["written"] * 2e-3 + executor.moved["read"] * 1e-3
    assert schedule.forward_s == pytest.approx(seconds)
    assert schedule.uses_storage_type(StorageType.DISK)
    assert executor.peak[StorageType.RAM] <= ram
    without = Schedule(n, ram, **sizes)
    assert schedule.forward_s < without.forward_s
    slow = Schedule(n, ram, **sizes, disk=(1e6, 1e6))
    assert not slow.uses_storage_type(StorageType.DISK)
    assert slow.forward_s == pytest.approx(without.forward_s)
    assert Schedule(n, 0, **sizes, disk=(0.0, 0.0)).forward_s == pytest.approx(forward_s.sum())


@pytest.mark.parametrize("snapshots", [2, 3, 6])
def test_online_repeats_no_step_more_than_the_best_offline_schedule_must(snapshots):
    """For any length a step runs at most t times again, C(s + t, s) >= n; gradients as plain."""
    for n in (1, 2, 5, 17, 40, 90):
        executor = Executor(OnlineSchedule(snapshots), X0, n, joins=True)
        _, gradient = executor.run()
        assert (gradient == plain_gradient(X0, n)[1]).all()
        assert executor.peak[StorageType.RAM] <= snapshots
        t = next(t for t in range(1, n + 1) if math.comb(snapshots + t, t) >= n)
        assert executor.forwards.max() <= t + 1
        assert executor.forwards.sum() >= optimal_steps_mixed(n, min(snapshots, max(n - 1, 1)))
        assert executor.schedule.num_forwards == executor.forwards.sum()


@pytest.mark.parametrize("period", [1, 3, 8])
def test_online_by_periods_repeats_no_more_than_the_two_level_schedule(period, monkeypatch):
    """Valid to the letter, as nothing is deleted; within a period it is exact, theirs binomial."""
    plain = getattr(n_advance, "py_func", n_advance)  # compiling it would take seconds
    monkeypatch.setattr("checkpoint_schedules.twolevel_binomial.n_advance", plain)
    fewer = 0
    for n, snapshots in itertools.product((1, 2, 7, 16, 29), (0, 1, 2, 5)):
        executor = Executor(OnlineSchedule(snapshots, period=period), X0, n)
        _, gradient = executor.run()
        assert (gradient == plain_gradient(X0, n)[1]).all()
        assert executor.peak[StorageType.RAM] <= snapshots
        assert executor.schedule.num_forwards == executor.forwards.sum()
        theirs = TwoLevelCheckpointSchedule(period, snapshots, binomial_storage=StorageType.RAM)
        num_forwards = 0
        for action in theirs:
            if type(action).__name__ == "EndReverse":
                break
            if type(action).__name__ == "Forward":
                num_forwards += min(action.n1, n) - action.n0
                if theirs.max_n is None and action.n1 >= n:
                    theirs.finalize(n)
        assert executor.forwards.sum() <= num_forwards
        fewer += executor.forwards.sum() < num_forwards
    assert (fewer > 0) == (period > 1)


def test_online_without_a_period_joins_what_restart_data_covers():
    """By the letter of the protocol a deletion leaves steps that no restart data covers."""
    with pytest.raises(AssertionError, match="covered"):
        Executor(OnlineSchedule(2), X0, 17).run()
    Executor(OnlineSchedule(2), X0, 2).run()  # nothing is deleted


def test_what_makes_no_schedule_is_refused():
    """As the package does, or with a remedy."""
    with pytest.raises(ValueError, match="max_n"):
        Schedule(0, 1)
    with pytest.raises(SchedsimError, match="cannot be reversed"):
        Schedule(5, 0)
    with pytest.raises(SchedsimError, match="too few"):
        OnlineSchedule(1)
    with pytest.raises(SchedsimError, match="-1 snapshots"):
        OnlineSchedule(-1, period=5)
    with pytest.raises(SchedsimError, match="period of 0"):
        OnlineSchedule(1, period=0)
    with pytest.raises(SchedsimError, match="entries"):
        Schedule(5, 9, restart_bytes=[1, 2])
    with pytest.raises(RuntimeError):
        Schedule(5, 3).finalize(4)


def a_disk(pyadjoint):
    """What pyadjoint asks of a package whose checkpoints may lie on disk; numbers need nothing."""
    names = pyadjoint.tape.TapePackageData.__abstractmethods__
    return type("Disk", (pyadjoint.tape.TapePackageData,), dict.fromkeys(names, lambda *_: None))()


def test_pyadjoint_runs_it_unchanged():
    """The gradient of its own tape without checkpoints, and its own Taylor test."""
    pyadjoint = pytest.importorskip("pyadjoint", reason="pyadjoint-ad is not installed")

    def forward(schedule, n=30):
        tape = pyadjoint.Tape()
        pyadjoint.set_working_tape(tape)
        pyadjoint.continue_annotation()
        if schedule is not None:
            tape._package_data["disk"] = a_disk(pyadjoint)
            tape.enable_checkpointing(schedule)
        start = pyadjoint.AdjFloat(0.7)
        x = start
        for i in tape.timestepper(iter(range(n))):
            x = x + 0.01 * x * x * (1.0 + 0.1 * i)
        value = x * x
        pyadjoint.pause_annotation()
        return pyadjoint.ReducedFunctional(value, pyadjoint.Control(start))

    plain = forward(None)
    offline = Schedule(30, 3), Schedule(30, 9), Schedule(30, 40)
    for schedule in (*offline, OnlineSchedule(2, period=7), OnlineSchedule(0, period=4)):
        planned = forward(schedule)
        assert float(planned.derivative()) == float(plain.derivative())
        assert planned(pyadjoint.AdjFloat(0.7)) == plain(pyadjoint.AdjFloat(0.7))
    with_checkpoints = forward(Schedule(30, 5))
    at, step = pyadjoint.AdjFloat(0.7), pyadjoint.AdjFloat(1.0)
    assert pyadjoint.taylor_test(with_checkpoints, at, step) > 1.9
