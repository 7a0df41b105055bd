"""Schedules of real blocks: memory as predicted, numbers as in the plain model, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.block_level import capture_chain  # noqa: E402
from schedsim.validation.block_level.repeated_forward import untouched  # noqa: E402
from schedsim.validation.measure import StorageTracker  # noqa: E402
from schedsim.validation.models import build_model  # noqa: E402
from small_models import SMALL, clear_gradients, outcome, random_schedule  # noqa: E402
from torch import nn  # noqa: E402

from schedsim import InvalidScheduleError, Schedule, simulate  # noqa: E402


@pytest.fixture(scope="module", params=SMALL)
def captured(request):
    """Each small model, captured once."""
    name, options = SMALL[request.param]
    model, inputs, loss = build_model(name, **options)
    return capture_chain(model, inputs, loss, rounds=0)


def measured_peak(captured, module):
    """Largest bytes of a step by the storage tracker, everything resident included."""
    clear_gradients(captured.model)
    with untouched(captured.model), StorageTracker() as tracker:
        gradients = [p.grad for p in captured.model.parameters()]
        tracker.add([captured.static_tensors, gradients, captured.inputs], "static")
        module(*captured.inputs).backward()
    return tracker.peak.total_bytes


@pytest.mark.slow
def test_random_schedules_hold_what_was_predicted(captured):
    """Ten of them, and store-all: bytes within 64 KiB and 0.1 %, results equal to the bit."""
    model, inputs, loss = captured.model, captured.inputs, captured.layout.loss
    plain = outcome(model, lambda: loss(model(*inputs)))
    rng = np.random.default_rng(0)
    schedules = [Schedule.store_all(captured.workload)]
    schedules += [random_schedule(rng, captured.workload) for _ in range(10)]
    for schedule in schedules:
        module = captured.module(schedule)
        found = outcome(model, lambda module=module: module(*inputs))
        assert all(map(torch.equal, plain, found))
        names = schedule.names
        assert module.run_counts == {name: names.count(name) for name in set(names)}
        predicted = simulate(captured.workload, schedule).peak_bytes
        measured = measured_peak(captured, module)
        assert measured <= predicted * 1.001 + 65536
        assert measured >= (predicted - charged_too_much(captured, names)) * 0.999 - 65536


def charged_too_much(captured, names):
    """The model's output, which the rule keeps to its backward, where ops run in between."""
    last = len(captured.layout.parts)
    follows = names[list(names).index("loss") + 1]
    if not captured.layout.releases_output or follows == f"B{last - 1}":
        return 0
    sizes = {name: size for op in captured.workload.graph.ops for name, size in op.writes.items()}
    return sizes[f"a{last}"]


def largest_gradients(captured):
    """The largest gradients of parameters that one op makes."""
    ops = captured.workload.graph.ops
    made = [sum(size for name, size in op.writes.items() if name[0] == "g") for op in ops]
    return max(made)


def test_predictions_are_exact_where_no_op_is_charged_too_much(captured):
    """Store-all to the byte, or below by what the rule charges and the backward never needs."""
    schedule = Schedule.store_all(captured.workload)
    over = measured_peak(captured, captured.module(schedule))
    over -= simulate(captured.workload, schedule).peak_bytes
    # A backward is charged the gradients of its parameters from its start.
    assert -20_000 - largest_gradients(captured) <= over <= 0


def test_a_schedule_that_adds_gradients_twice_is_refused():
    """A second backward of a block, and a forward that lacks its input."""
    model, inputs, loss = build_model("mlp", layers=2, hidden=4, batch=2)
    captured = capture_chain(model, inputs, loss, rounds=0)
    with pytest.raises(InvalidScheduleError, match="B1 runs a second time"):
        captured.module(Schedule.from_names(["F0", "F1", "loss", "B1", "B1", "B0"]))
    with pytest.raises(InvalidScheduleError, match="does not exist"):
        captured.module(Schedule.from_names(["F1", "F0", "loss", "B1", "B0"]))


def test_in_place_and_view_stages_are_joined_to_the_one_before():
    """ReLU in place and Flatten are no stages of their own."""
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(72, 3), nn.Tanh()
    )
    captured = capture_chain(model, torch.randn(4, 1, 8, 8), lambda y: y.square().mean(), rounds=0)
    assert captured.chain.num_stages == 3
    assert len(captured.notes) == 2
    plain = outcome(model, lambda: model(*captured.inputs).square().mean())
    again = Schedule.from_names(["F0", "F1", "F2", "loss", "B2", "F0", "F1", "B1", "F0", "B0"])
    module = captured.module(again)
    assert all(map(torch.equal, plain, outcome(model, lambda: module(*captured.inputs))))


def test_times_are_measured_per_kind_of_block():
    """Equal blocks share their median; a wider one takes longer."""
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3)), nn.Linear(64, 4096))
    captured = capture_chain(model, torch.randn(256, 64), lambda y: y.square().mean())
    times = [stage.forward_s for stage in captured.chain.stages]
    assert times[1] == times[2] > 0
    assert times[3] > times[1]
    assert all(stage.backward_s > 0 for stage in captured.chain.stages)
