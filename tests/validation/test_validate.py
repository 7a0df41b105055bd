"""Validation: what holds is found to hold, what does not is found not to."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.block_level.repeated_forward import frozen_statistics  # noqa: E402
from schedsim.validation.measure.timing import Timing  # noqa: E402
from schedsim.validation.models import build_model  # noqa: E402
from schedsim.validation.steps import MeasuredSteps  # noqa: E402
from schedsim.validation.targets import LoadedTarget, capture_target  # noqa: E402
from schedsim.validation.validate import (  # noqa: E402
    check_overhead,
    check_peak,
    check_results,
    validate,
)
from small_models import SMALL  # noqa: E402
from tiers import slow_where  # noqa: E402

from schedsim import Schedule, simulate  # noqa: E402
from schedsim.api import comparable, try_plan  # noqa: E402

CHAINS = [label for label in SMALL if label != "unet"]


def small_target(label):
    """A small model as a target."""
    name, options = SMALL[label]
    model, inputs, loss = build_model(name, **options)
    return LoadedTarget(label, model, inputs, loss)


@pytest.mark.parametrize("label", slow_where(CHAINS, lambda label: label in ("resnet", "gpt2")))
def test_every_planner_at_four_budgets_does_what_it_promised(label):
    """Peak as simulated, within the budget, results of the plain model to the bit."""
    target = small_target(label)
    captured = capture_target(target, rounds=0)
    chain = timed(captured.chain)
    whole = simulate(chain, Schedule.store_all(chain)).peak_bytes
    least = try_plan(chain, whole, "frontier").min_feasible_bytes
    plans = [
        try_plan(chain, least + (whole - least) * k // 3, planner)
        for planner in comparable(chain)
        for k in range(4)
    ]
    distinct = {plan.schedule: plan for plan in reversed(plans) if plan.feasible}
    assert len(distinct) >= 4
    named = {str(k): schedule for k, schedule in enumerate(distinct)}
    steps = MeasuredSteps(target, captured, named)
    plain = steps.results("plain")
    for name, schedule in named.items():
        peak, results = steps.run(name)
        found = peak.total_bytes
        budget = min(p.budget_bytes for p in plans if p.schedule == schedule)
        assert found <= budget
        assert check_peak(found, simulate(chain, schedule).peak_bytes, "storage").holds
        assert all(map(torch.equal, plain, results))


def timed(chain):
    """The chain with times of a round number each, so that no machine matters."""
    stages = tuple(replace(s, forward_s=1.0, backward_s=2.0) for s in chain.stages)
    return replace(chain, stages=stages)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["block", "op"])
def test_a_report_says_what_was_compared(level):
    """Every check by name; the timeline has a row per run; JSON holds it."""
    target = small_target("vit")
    captured = capture_target(target, level, rounds=0) if level == "block" else None
    captured = captured or capture_target(target, level)
    workload = captured.workload if level == "block" else captured.graph
    schedule = Schedule.store_all(workload)
    peak = simulate(workload, schedule).peak_bytes
    report = validate(target, captured, schedule, budget_bytes=peak, rounds=3)
    memory = [check for check in report.checks if check.name != "overhead"]
    assert [c.says for c in memory if not c.holds] == []
    assert {c.name for c in report.checks} == {
        "results as plain",
        "results as store-all",
        "runs",
        "peak",
        "budget",
        "overhead",
    }
    assert len(report.timeline["measured_bytes"]) == report.num_runs
    document = report.to_dict()
    assert document["schema"] == "schedsim.validation/1"
    assert sum(document["predicted"]["by_kind"].values()) == peak
    if level == "block":
        assert sum(document["measured"]["by_kind"].values()) == document["measured"]["peak_bytes"]
        assert document["timeline"]["measured_bytes"] == pytest.approx(
            document["timeline"]["predicted_bytes"], rel=2e-3
        )


def test_the_allocator_is_predicted_where_its_workspaces_are_measured():
    """A convolution's own scratch, which no tensor shows, is in the chain."""
    target = small_target("resnet")
    captured = capture_target(target, meter="allocator", rounds=0)
    schedule = Schedule.from_names(recomputing(captured.chain))
    report = validate(target, captured, schedule, rounds=0)
    assert [check.says for check in report.checks if not check.holds] == []
    assert report.measured["allocator_peak_bytes"] > report.measured["storage_peak_bytes"]


def recomputing(chain):
    """Replay every stage once."""
    num = chain.num_stages
    names = [f"F{i}" for i in range(num)] + ["loss"]
    for i in reversed(range(num)):
        names += [f"F{i}", f"B{i}"]
    return names


def test_a_wrong_prediction_is_found():
    """A chain whose sizes are not the model's: the peak does not hold, nor does the budget."""
    target = small_target("mlp")
    captured = capture_target(target, rounds=0)
    stages = tuple(replace(s, saved_bytes=s.output_bytes) for s in captured.chain.stages)
    wrong = replace(captured, workload=replace(captured.chain, stages=stages))
    schedule = Schedule.store_all(wrong.chain)
    peak = simulate(wrong.chain, schedule).peak_bytes
    report = validate(target, wrong, schedule, budget_bytes=peak, rounds=0)
    assert {check.name for check in report.checks if not check.holds} == {"peak", "budget"}
    assert not report.holds


def test_a_wrong_gradient_is_found():
    """Without the saved random numbers, dropout differs: the check says by how much."""
    target = small_target("mlp")
    captured = capture_target(target, rounds=0)
    steps = MeasuredSteps(target, captured, {"all": Schedule.store_all(captured.chain)})
    one = steps.results("all")
    steps.seed = 5
    other = steps.results("all")
    check = check_results("results", one, other)
    assert not check.holds
    assert "largest difference" in check.says
    assert check_results("results", one, one).holds
    nan = [torch.full_like(tensor, float("nan")) for tensor in one]
    assert not check_results("results", nan, one).holds


@pytest.mark.slow
def test_validation_leaves_the_model_as_it_was():
    """Weights, statistics and gradients."""
    target = small_target("resnet")
    for parameter in target.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = {key: value.clone() for key, value in target.model.state_dict().items()}
    captured = capture_target(target, rounds=0)
    validate(target, captured, Schedule.store_all(captured.chain), rounds=0)
    after = target.model.state_dict()
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in target.model.parameters())


def test_frozen_statistics_normalise_the_same():
    """The batch norm of a repeat gives the bits of the first run and moves nothing."""
    norm = torch.nn.BatchNorm2d(3)
    x = torch.randn(2, 3, 4, 4)
    first = norm(x)
    moved = norm.running_mean.clone()
    with frozen_statistics([norm]):
        assert torch.equal(norm(x), first)
    assert torch.equal(norm.running_mean, moved)
    assert norm.num_batches_tracked == 1


@pytest.mark.parametrize(
    ("rounds", "holds", "noisy"),
    [
        ((1.15, 1.14, 1.16), True, False),  # near the prediction
        ((1.27, 0.86, 2.14), True, True),  # far from it, but the rounds differ as much
        ((1.27, 1.25, 1.30), False, False),
    ],
)
def test_an_overhead_in_noise_says_so(rounds, holds, noisy):
    check = check_overhead(Timing(*rounds, num_runs=7), 0.1, "cpu")
    assert check.holds == holds
    assert ("quiet machine" in check.says) == noisy
