"""Steps of a real model, plain and scheduled, from the same start."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from replayed_blocks import recompute_everything  # noqa: E402
from schedsim.validation.block_level import capture_chain  # noqa: E402
from schedsim.validation.capture import capture  # noqa: E402
from schedsim.validation.steps import PLAIN, MeasuredSteps  # noqa: E402
from schedsim.validation.targets import load_target  # noqa: E402

from schedsim import Schedule, simulate  # noqa: E402

MLP = "model:mlp,layers=4,hidden=32,batch=16,dropout=0.2"


@pytest.fixture(scope="module")
def by_blocks():
    target = load_target(MLP)
    captured = capture_chain(target.model, target.inputs, target.loss, rounds=0)
    chain = captured.chain
    schedules = {"all": Schedule.store_all(chain), "none": recompute_everything(chain)}
    return chain, MeasuredSteps(target, captured, schedules, seed=3), schedules


def test_steps_leave_the_same_behind_and_the_model_as_it_was(by_blocks):
    """Loss and gradients to the bit, dropout included; the same again."""
    _, steps, _ = by_blocks
    before = [p.detach().clone() for p in steps.target.model.parameters()]
    plain = steps.results(PLAIN)
    for which in ("all", "none", PLAIN):
        assert all(map(torch.equal, plain, steps.results(which)))
    assert len(plain) == 1 + len(before)
    assert all(map(torch.equal, before, steps.target.model.parameters()))


@pytest.mark.parametrize("which", ["all", "none"])
def test_the_bytes_of_every_run_are_those_predicted(by_blocks, which):
    """And the peak is the largest, with what it is made of."""
    chain, steps, schedules = by_blocks
    told = simulate(chain, schedules[which])
    found = steps.peak(which)
    assert found.total_bytes == max(found.run_bytes) == found.run_bytes[found.at_run]
    assert len(found.run_bytes) == len(schedules[which].names)
    # A workspace may be predicted that the step does not need; never the other way round.
    assert 0.95 * told.peak_bytes <= found.total_bytes <= told.peak_bytes
    for measured, predicted in zip(found.run_bytes, told.memory_bytes.tolist(), strict=True):
        assert 0.95 * predicted <= measured <= predicted
    assert sum(found.by_kind.values()) == pytest.approx(found.total_bytes, rel=0.02)
    assert found.by_kind["static"] > 0


def test_the_plain_step_takes_what_storages_take(by_blocks):
    """No run is told apart; the allocator's own record says no less."""
    _, steps, _ = by_blocks
    plain = steps.peak(PLAIN)
    assert plain.run_bytes == []
    assert plain.total_bytes > steps.peak("none").by_kind["static"]
    assert steps.allocator_peak(PLAIN) >= 0.95 * plain.total_bytes


def test_times_are_taken_in_turn(by_blocks):
    """As many of each."""
    _, steps, _ = by_blocks
    times = steps.times([PLAIN, "none"], 3, warm_up=0)
    assert {name: len(found) for name, found in times.items()} == {PLAIN: 3, "none": 3}
    assert all(seconds > 0 for found in times.values() for seconds in found)


def test_ops_are_observed_one_by_one():
    """At the op level gradients count from where they are made."""
    target = load_target("model:mlp,layers=2,hidden=16,batch=8")
    captured = capture(target.model, target.inputs, target.loss)
    schedule = Schedule.store_all(captured.graph)
    steps = MeasuredSteps(target, captured, {"all": schedule})
    assert all(p.grad is None for p in target.model.parameters())
    found, left = steps.run("all")
    assert len(found.run_bytes) == len(schedule.names)
    assert found.total_bytes == pytest.approx(
        simulate(captured.graph, schedule).peak_bytes, rel=0.05
    )
    assert all(map(torch.equal, left, steps.results(PLAIN)))
