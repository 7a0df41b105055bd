"""A schedule run on the real model: predictions beside measurements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from schedsim.allocators import allocate
from schedsim.dataflow.streams import HOST
from schedsim.plans.offloading import Offloading
from schedsim.plans.setting import Setting
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import Simulation, simulate

from .block_level import CapturedChain
from .block_level.repeated_forward import untouched
from .capture import CapturedGraph
from .dry_cuda import LABEL, has_times, has_values
from .environment import environment
from .measure import Timing, count_flops, ratio
from .steps import PLAIN, MeasuredSteps
from .targets import LoadedTarget, workload_of

SCHEMA = "schedsim.validation/1"
UNLIMITED_BYTES = 2**53 - 1
STORE_ALL, SCHEDULE = "store-all", "schedule"

PEAK_TOLERANCE = {"storage": (1e-3, 2**16), "allocator": (5e-3, 2**16), "cuda": (1e-2, 2**20)}
"""By meter, the allowed difference of the measured peak: share of the prediction, and bytes."""

RESERVED_TOLERANCE = (0.01, 8 * 2**20)
"""Allowed difference of the prediction: share of reserved bytes, and bytes; the larger counts."""

OVERHEAD_TOLERANCE = {"cpu": 0.10, "cuda": 0.03}
"""By device, the allowed difference in points of overhead."""

RESULT_TOLERANCE = {
    torch.float64: 1e-10,
    torch.float32: 1e-4,
    torch.bfloat16: 5e-2,
    torch.float16: 2e-2,
}
"""Allowed difference over the largest entry, where results are not equal to the bit."""


@dataclass(frozen=True)
class Check:
    """One check of a validation.

    Attributes
    ----------
    says
        What was compared, with numbers and tolerance.
    """

    name: str
    holds: bool
    says: str


@dataclass
class Report:
    """The findings of a validation; `to_dict` is the content of a ``schedsim.validation/1`` file.

    Attributes
    ----------
    predicted, measured
        Numbers by name: peaks in bytes, overheads as shares, and bytes by kind at the peak.
    timeline
        For each run of the schedule: its op, and the bytes predicted and measured.
    checks
        Checks, all of which must hold.
    """

    name: str
    level: str
    environment: dict[str, str]
    num_runs: int
    num_recomputed: int
    budget_bytes: int | None
    predicted: dict[str, Any] = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)
    timeline: dict[str, list[Any]] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether every check holds."""
        return all(check.holds for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-compatible values."""
        return {"schema": SCHEMA, "holds": self.holds, **asdict(self)}


def validate(
    target: LoadedTarget,
    captured: CapturedChain | CapturedGraph,
    schedule: Schedule,
    *,
    budget_bytes: int | None = None,
    rounds: int = 7,
    seed: int = 0,
    offloading: Offloading | None = None,
    planned_bytes: int | None = None,
) -> Report:
    """Run `schedule` on the model of `target` and compare with the simulation.

    Results are compared with those of the plain model and of the store-all schedule, from the same
    weights, buffers and random numbers; peaks are of a whole step with gradients allocated before
    (block level) or not (op level), as the workload counts them; times are of steps in turn.

    Parameters
    ----------
    captured
        `target` as captured; the schedule is for its workload.
    budget_bytes
        Must not be passed by the measured peak.
    rounds
        Of timing; 0 leaves the times out.
    offloading, planned_bytes
        Of a schedule with copies: its link, and the device memory within which it was planned, by
        default `budget_bytes`. The host's memory is compared too.

    Returns
    -------
    Report
        The model's weights, buffers and gradients are left as they were.

    Raises
    ------
    InvalidScheduleError
        The schedule is not legal.

    Examples
    --------
    >>> from schedsim import Schedule
    >>> from schedsim.validation.targets import capture_target, load_target
    >>> from schedsim.validation.validate import validate
    >>> target = load_target("model:mlp,layers=3,hidden=8,batch=4", "cpu")
    >>> captured = capture_target(target, rounds=0)
    >>> schedule = Schedule.from_names("F0 F1 F2 loss B2 F0 F1 B1 B0".split())
    >>> validate(target, captured, schedule, rounds=0).holds
    True
    """
    workload = workload_of(captured)
    everything = Schedule.store_all(workload)
    steps = MeasuredSteps(target, captured, {STORE_ALL: everything}, seed=seed)
    if offloading is None or not isinstance(captured, CapturedChain):
        simulation = simulate(workload, schedule)
        steps.modules[SCHEDULE] = captured.module(schedule)
    else:
        within = planned_bytes if planned_bytes is not None else budget_bytes
        within = UNLIMITED_BYTES if within is None else within
        simulation = Setting(copies=offloading).simulate(workload, schedule, within)
        graph = offloading.graph(workload, schedule)
        steps.modules[SCHEDULE] = captured.module(schedule, graph, offloading.capacities(within))
    report = Report(
        name=target.name,
        level="block" if isinstance(captured, CapturedChain) else "op",
        environment=environment(target.device),
        num_runs=simulation.num_runs,
        num_recomputed=simulation.num_recomputed,
        budget_bytes=budget_bytes,
        notes=list(captured.notes),
    )
    if not has_times(target.device):
        report.notes.append(f"{LABEL}: times are not compared")
        rounds = 0
    with kept_gradients(target.model), untouched(target.model):
        if has_values(target.device):
            _compare_results(steps, report)
            report.checks.append(check_runs(steps, simulation))
            _compare_memory(steps, simulation, report)
        else:
            report.notes.append("nothing is computed: results are not compared")
            _compare_memory(steps, simulation, report)
            report.checks.append(check_runs(steps, simulation))
        if rounds:
            _compare_times(steps, simulation, report, rounds)
    return report


def _compare_results(steps: MeasuredSteps, report: Report) -> None:
    found = steps.results(SCHEDULE)
    for other in (PLAIN, STORE_ALL):
        try:
            reference = steps.results(other)
        except torch.OutOfMemoryError:
            report.notes.append(f"{other} runs out of memory: results not compared with it")
            torch.cuda.empty_cache()
            continue
        report.checks.append(check_results(f"results as {other}", found, reference))


def check_results(name: str, found: list[Tensor], reference: list[Tensor]) -> Check:
    """Whether loss, gradients and buffers are those of `reference`, to the bit or nearly."""
    if len(found) != len(reference):
        return Check(name, False, f"{len(found)} tensors instead of {len(reference)}")
    pairs = list(zip(found, reference, strict=True))
    if all(torch.equal(a, b) for a, b in pairs):
        says = f"equal to the bit: loss, gradients, buffers ({len(pairs)} tensors)"
        return Check(name, True, says)
    worst, allowed, holds = 0.0, 0.0, True
    for a, b in pairs:
        limit, gap = RESULT_TOLERANCE.get(b.dtype, 0.0), _difference(a, b)
        holds = holds and gap <= limit
        if not gap <= worst:
            worst, allowed = gap, limit
    says = f"largest difference {worst:.1e} of the largest entry, allowed {allowed:.0e}"
    return Check(name, holds, says)


def _difference(a: Tensor, b: Tensor) -> float:
    """Largest difference over the largest entry of `b`; nan where either has one."""
    if a.shape != b.shape:
        return float("inf")
    if torch.equal(a, b) or not b.numel():
        return 0.0
    kind = torch.float64 if b.dtype == torch.float64 else torch.float32
    scale = max(float(b.abs().max()), 1e-30)
    return float((a.to(kind) - b.to(kind)).abs().max()) / scale


def check_runs(steps: MeasuredSteps, simulation: Simulation, which: str = SCHEDULE) -> Check:
    """Whether every op ran as often as in the schedule, by the module's own count."""
    wanted: dict[str, int] = {}
    for name in simulation.schedule.names:
        wanted[name] = wanted.get(name, 0) + 1
    counted = {name: n for name, n in steps.modules[which].run_counts.items() if n}
    wrong = [n for n in {**wanted, **counted} if counted.get(n, 0) != wanted.get(n, 0)]
    says = f"{sum(counted.values())} runs, {simulation.num_recomputed} of them recomputed"
    if wrong:
        op = wrong[0]
        says = f"{op} ran {counted.get(op, 0)} times instead of {wanted.get(op, 0)}"
    return Check("runs", not wrong, says)


def meter_of(captured: CapturedChain | CapturedGraph, device: torch.device) -> str:
    """The meter whose workspaces the workload holds: what its peak predicts."""
    if device.type == "cuda":
        return "cuda"
    return captured.meter if isinstance(captured, CapturedChain) else "allocator"


def _compare_memory(steps: MeasuredSteps, simulation: Simulation, report: Report) -> None:
    measured = report.measured
    module = steps.modules[SCHEDULE]
    # With copies, runs are issued in the order of their starts, not in that of the schedule.
    by_starts = bool(getattr(module, "mover", None))
    run_names = module.run_names if by_starts else simulation.schedule.names
    report.predicted["peak_bytes"] = simulation.peak_bytes
    report.predicted["peak_op"] = simulation.peak_op
    report.predicted["by_kind"] = predicted_kinds(simulation)
    for other in (PLAIN, STORE_ALL):
        try:
            measured[f"{other}_peak_bytes"] = steps.peak(other).total_bytes
        except torch.OutOfMemoryError:
            measured[f"{other}_peak_bytes"] = None
            torch.cuda.empty_cache()
    peak = steps.peak(SCHEDULE)
    total = peak.total_bytes
    if peak.at_run is not None:
        measured["peak_op"] = run_names[peak.at_run]
    if peak.by_kind:
        measured["by_kind"] = peak.by_kind
    for name in ("allocated_bytes", "reserved_bytes"):
        if getattr(peak, name) is not None:
            measured[name] = getattr(peak, name)
    meter = meter_of(steps.captured, steps.device)
    if steps.device.type == "cpu":
        measured["storage_peak_bytes"] = total
        measured["allocator_peak_bytes"] = steps.allocator_peak(SCHEDULE)
        total = measured[f"{meter}_peak_bytes"]
    measured["peak_bytes"] = total
    report.timeline = {
        "op": run_names,
        "predicted_bytes": _in_order(simulation, run_names),
        "measured_bytes": peak.run_bytes,
    }
    report.checks.append(check_peak(total, simulation.peak_bytes, meter))
    if by_starts:
        check = check_host(module.mover.pool.peak_bytes, simulation.peak_by_pool.get(HOST, 0))
        report.predicted["host_peak_bytes"] = simulation.peak_by_pool.get(HOST, 0)
        measured["host_peak_bytes"] = module.mover.pool.peak_bytes
        report.checks.append(check)
    told = _check_reserved(steps, simulation, report)
    if report.budget_bytes is not None and told is not None and told <= report.budget_bytes:
        reserved = measured["reserved_bytes"]
        says = f"reserved {reserved:,} bytes of {report.budget_bytes:,}"
        report.checks.append(Check("budget", reserved <= report.budget_bytes, says))
    elif report.budget_bytes is not None:
        says = f"measured {total:,} bytes of {report.budget_bytes:,}"
        report.checks.append(Check("budget", total <= report.budget_bytes, says))


def _check_reserved(steps: MeasuredSteps, simulation: Simulation, report: Report) -> int | None:
    """Compare what one step reserves, where its requests were recorded; what was predicted."""
    workload = workload_of(steps.captured)
    recorded = workload.recorded
    if (
        recorded is None
        or "reserved_bytes" not in report.measured
        or not simulation._graph.one_stream
    ):
        return None
    num_steps = 2 if steps.keeps_gradients else 1
    found = allocate(simulation, num_steps=num_steps, **recorded.allocator_options)
    told = found.peak_reserved_bytes
    report.predicted["reserved_bytes"] = told
    reserved = report.measured["reserved_bytes"]
    share, absolute = RESERVED_TOLERANCE
    says = f"reserved {reserved:,} bytes, predicted {told:,}: {reserved / max(1, told) - 1:+.3%}"
    holds = abs(reserved - told) <= max(absolute, share * reserved)
    report.checks.append(Check("reserved", holds, says))
    return told


def check_peak(measured_bytes: int, predicted_bytes: int, meter: str) -> Check:
    """Whether the measured peak is the predicted one, within what the meter is allowed."""
    share, absolute = PEAK_TOLERANCE[meter]
    gap = measured_bytes - predicted_bytes
    says = (
        f"measured {measured_bytes:,} bytes by {meter}, predicted {predicted_bytes:,}: "
        f"{gap / max(1, predicted_bytes):+.3%}, allowed {share:.1%} and {absolute:,} bytes"
    )
    return Check("peak", abs(gap) <= share * predicted_bytes + absolute, says)


def check_host(measured_bytes: int, predicted_bytes: int) -> Check:
    """Whether no more host memory was in use than predicted: buffers have the sizes of storages.

    Fewer bytes are copied where the loss drops the model's output before the plan would copy it.
    """
    says = f"measured {measured_bytes:,} bytes, predicted {predicted_bytes:,}"
    return Check("host peak", measured_bytes <= predicted_bytes, says)


def _in_order(simulation: Simulation, run_names: list[str]) -> list[int]:
    """Predicted bytes of each run, in the order of `run_names`; those of an op keep theirs."""
    found: dict[str, list[int]] = {}
    for name, size in zip(simulation.schedule.names, simulation.memory_bytes.tolist(), strict=True):
        found.setdefault(name, []).append(int(size))
    sizes_left = {name: iter(sizes) for name, sizes in found.items()}
    return [next(sizes_left[name]) for name in run_names]


def predicted_kinds(simulation: Simulation) -> dict[str, int]:
    """Bytes at the peak by what they are: of blocks, activations, bundles and gradients."""
    kinds = simulation.by_category()
    names = {"a": "activations", "r": "bundles", "d": "gradients"}
    found = {"static": kinds["static"]}
    for tensor in simulation.live_tensors():
        if tensor.name.endswith("@host"):
            continue  # in another memory
        kind = names.get(tensor.name[:1], "tensors") if tensor.name[1:2].isdigit() else "tensors"
        kind = "static" if tensor.name == "a0" else kind  # the inputs are the caller's
        found[kind] = found.get(kind, 0) + tensor.size_bytes
    found["workspace"] = kinds["workspace"]
    freed = sum(found.values()) - sum(kinds.values())  # by the op itself, before it makes gradients
    if freed:
        found["gradients"] = found.get("gradients", 0) - freed
    return found


def _compare_times(
    steps: MeasuredSteps, simulation: Simulation, report: Report, rounds: int
) -> None:
    measured = report.measured
    names = [n for n in (PLAIN, STORE_ALL) if measured[f"{n}_peak_bytes"] is not None]
    times = steps.times([*names, SCHEDULE], rounds)
    for name, row in times.items():
        measured[f"{name}_s"] = asdict(Timing.of(row))
    with untouched(steps.target.model):
        steps.start()
        measured["flops"] = count_flops(lambda: steps.step(SCHEDULE))
    report.predicted["overhead"] = simulation.overhead
    report.predicted["makespan_s"] = simulation.makespan_s
    if STORE_ALL not in times:
        report.notes.append("store-all runs out of memory: overhead not measured")
        return
    if getattr(steps.modules[SCHEDULE], "mover", None) and steps.device.type == "cpu":
        report.notes.append("on the CPU, copies run between the ops: overhead not compared")
        return
    found = ratio(times[SCHEDULE], times[STORE_ALL])
    measured["overhead"] = found.median_s - 1.0
    measured["overhead_low"] = found.low_s - 1.0
    measured["overhead_high"] = found.high_s - 1.0
    report.checks.append(check_overhead(found, simulation.overhead, steps.device.type))


def check_overhead(found: Timing, predicted: float, device: str) -> Check:
    """Whether the middle half of the rounds comes as near to `predicted` as the device allows."""
    allowed = OVERHEAD_TOLERANCE[device]
    low, high = found.low_s - 1.0, found.high_s - 1.0
    says = (
        f"measured {found.median_s - 1:+.1%} (half of {found.num_runs} rounds in {low:+.1%} to "
        f"{high:+.1%}), predicted {predicted:+.1%}, allowed {100 * allowed:.0f} points"
    )
    holds = max(low - predicted, predicted - high, 0.0) <= allowed
    if holds and abs(found.median_s - 1.0 - predicted) > allowed:
        says += "; the rounds differ too much to say more, so validate again on a quiet machine"
    return Check("overhead", holds, says)


@contextmanager
def kept_gradients(model: nn.Module) -> Iterator[None]:
    """Put back the gradients that the model had."""
    kept = [(p, p.grad) for p in model.parameters()]
    try:
        yield
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient
