"""Times of blocks, taken in whole steps."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from chains import unit_chain  # noqa: E402
from schedsim.validation.block_level import block_timing, capture_chain  # noqa: E402
from schedsim.validation.block_level.bench import Measured  # noqa: E402
from schedsim.validation.block_level.block_timing import (  # noqa: E402
    _replaying,
    measure_times,
    spread_of,
    step_seconds,
)
from schedsim.validation.block_level.parts import StepInputs  # noqa: E402
from torch import nn  # noqa: E402

from schedsim import Schedule, simulate  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def captured():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)))
    return capture_chain(model, torch.randn(4, 8), lambda y: y.sum(), rounds=0)


def timed(captured, rounds, monkeypatch, memory=2**40):
    """Rows of times, with a clock that tells the number of marks so far."""
    monkeypatch.setattr(block_timing, "device_memory_bytes", lambda device: memory)
    marks = iter(range(10**6))
    monkeypatch.setattr(block_timing._Clock, "now", lambda self: float(next(marks)))
    rows = [Measured() for _ in range(captured.chain.num_stages + 1)]
    inputs = StepInputs((torch.randn(4, 8),))
    how = measure_times(captured.layout, inputs, captured.chain, rows, CPU, rounds)
    return rows, how


def test_every_block_is_replayed_right_before_its_backward():
    """Nothing is kept in the first forward."""
    chain = unit_chain(3)
    names = list(_replaying(chain).names)
    assert names == ["F0", "F1", "F2", "loss", "F2", "B2", "F1", "B1", "F0", "B0"]
    assert simulate(chain, _replaying(chain)).num_recomputed == 3


def test_each_round_times_each_op_in_both_kinds_of_steps(captured, monkeypatch):
    """A run lasts one tick; a replay and its backward two; the first round warms up."""
    rows, how = timed(captured, 2, monkeypatch)
    assert how == "store-all and replaying steps"
    for row in rows[:-1]:
        assert row.forward_s == [1.0, 1.0]
        assert row.saving_s == [1.0, 1.0]
        assert row.backward_s == [1.0, 1.0]
        assert row.replayed_s == [2.0, 2.0]
        assert len(row.rounds()) == 2
    assert rows[-1].backward_s == [1.0, 1.0]


def test_a_step_that_would_not_fit_is_not_run_to_be_timed(captured, monkeypatch):
    """Then replays give the times of both."""
    rows, how = timed(captured, 1, monkeypatch, memory=1)
    assert how == "replaying steps"
    for row in rows[:-1]:
        assert row.forward_s == row.saving_s == row.backward_s == [1.0]
        assert row.replayed_s == [2.0]


def test_by_a_data_sheet_one_step_tells_all(captured, monkeypatch):
    """Forwards that keep their bundle, and backwards, take as long as in store-all."""
    monkeypatch.setattr(block_timing, "has_times", lambda device: False)
    monkeypatch.setattr(block_timing, "dry_device_name", lambda: "a100-80gb")
    inputs, timed_step = StepInputs((torch.randn(4, 8),)), block_timing._timed_step
    everything = Schedule.store_all(captured.chain)
    stored = timed_step(captured.layout, inputs, captured.chain, everything, CPU)
    timed_steps = []

    def counted(*given):
        timed_steps.append(given[3])
        return timed_step(*given)

    monkeypatch.setattr(block_timing, "_timed_step", counted)
    rows = [Measured() for _ in range(captured.chain.num_stages + 1)]
    how = measure_times(captured.layout, inputs, captured.chain, rows, CPU, 1)
    assert (how, timed_steps) == ("replaying steps, by roofline", [_replaying(captured.chain)])
    for run, seconds in stored:
        row = rows[run.index]
        assert (row.saving_s if run.kind == "F" else row.backward_s) == [pytest.approx(seconds)]
        assert seconds > 0


def test_a_step_cold_is_the_sum_of_its_runs(captured, monkeypatch):
    """Six parts, each twice forward and once back, and the loss: a tick a run."""
    marks = iter(range(10**6))
    monkeypatch.setattr(block_timing._Clock, "now", lambda self: float(next(marks)))
    inputs = StepInputs((torch.randn(4, 8),))
    assert step_seconds(captured.layout, inputs, captured.chain, CPU) == 19


def test_the_spread_is_that_of_most_of_the_time():
    """Quartiles over the median, weighted by the median; single rounds say nothing."""
    steady = Measured(forward_s=[100.0, 100.0, 100.0])
    noisy = Measured(forward_s=[1.0, 2.0, 3.0], saving_s=[5.0])
    assert spread_of([steady]) == 0
    assert spread_of([noisy]) == pytest.approx(0.5)
    assert spread_of([steady, noisy]) == pytest.approx((100 * 0 + 2 * 0.5) / 102)
    assert spread_of([Measured()]) == 0
    assert spread_of([Measured(forward_s=[0.0, 0.0])]) == 0
