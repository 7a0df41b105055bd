"""A schedule run on the real model: what was predicted beside what is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from schedsim.chain import Chain
from schedsim.errors import SchedsimError
from schedsim.graph import Graph
from schedsim.schedule import Schedule
from schedsim.simulator import Simulation, simulate

from .block_level import CapturedChain
from .block_level.module import ScheduledModule, loss_of, split_inputs
from .block_level.replay import untouched
from .capture import CapturedGraph
from .capture.skeleton import count_extra_inputs
from .environment import environment
from .measure import AllocatorMeter, StorageTracker, Timing, count_flops, ratio, time_interleaved
from .measure.cuda import cuda_peak, requested_peak, reset_peak
from .measure.meters import no_collection
from .measure.storage import storages
from .targets import Target, workload_of

SCHEMA = "schedsim.validation/1"

# What the storage tracker may differ by on the CPU, and CUDA's requested bytes there.
PEAK_TOLERANCE = {"cpu": (1e-3, 64 * 2**10), "cuda": (1e-2, 2**20)}
ALLOCATOR_TOLERANCE = 5e-3
OVERHEAD_TOLERANCE = {"cpu": 0.10, "cuda": 0.03}
# Largest difference over the largest entry, where results are not equal to the bit.
RESULT_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 5e-2}
RESULT_TOLERANCE[torch.float16] = 2e-2


@dataclass(frozen=True)
class Check:
    """One thing that must hold.

    Attributes
    ----------
    says
        What was compared, with the numbers and the tolerance.
    """

    name: str
    holds: bool
    says: str


@dataclass
class Report:
    """What a validation found; `to_dict` is the content of a ``schedsim.validation/1`` file.

    Attributes
    ----------
    predicted, measured
        Numbers by name: peaks in bytes, overheads as shares, bytes by kind at the peak.
    timeline
        Per run of the schedule: its op, and the bytes predicted and measured.
    checks
        All of them must hold.
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
        """As JSON takes it."""
        return {"schema": SCHEMA, "holds": self.holds, **asdict(self)}


def validate(
    target: Target,
    captured: CapturedChain | CapturedGraph,
    schedule: Schedule,
    *,
    budget_bytes: int | None = None,
    rounds: int = 7,
    seed: int = 0,
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

    Returns
    -------
    Report
        The model's weights, buffers and gradients are left as they were.

    Raises
    ------
    InvalidScheduleError
        The schedule is not legal.
    """
    workload = workload_of(captured)
    simulation = simulate(workload, schedule)
    report = Report(
        name=target.name,
        level="block" if isinstance(captured, CapturedChain) else "op",
        environment=environment(target.device),
        num_runs=simulation.num_runs,
        num_recomputed=simulation.num_recomputed,
        budget_bytes=budget_bytes,
        notes=list(captured.notes),
    )
    bench = _Bench(target, captured, schedule, seed)
    with _restored_gradients(target.model), untouched(target.model):
        _compare_results(bench, report)
        _compare_counts(bench, workload, schedule, report)
        _compare_memory(bench, simulation, report)
        if rounds:
            _compare_times(bench, simulation, report, rounds)
    return report


class _Bench:
    """Steps of the plain model, of store-all and of the schedule, each from the same start."""

    def __init__(
        self,
        target: Target,
        captured: CapturedChain | CapturedGraph,
        schedule: Schedule,
        seed: int,
    ) -> None:
        self.target, self.captured, self.seed = target, captured, seed
        self.by_blocks = isinstance(captured, CapturedChain)
        self.device = target.device
        everything = Schedule.store_all(workload_of(captured))
        self.modules: dict[str, Any] = {
            "plain": _Plain(target),
            "store-all": captured.module(everything),
            "schedule": captured.module(schedule),
        }

    @property
    def static(self) -> list[Tensor]:
        """Everything resident before a step, but for gradients."""
        model, loss = self.target.model, self.target.loss
        found = [*model.parameters(), *model.buffers()]
        if isinstance(loss, nn.Module):
            found += [*loss.parameters(), *loss.buffers()]
        return found

    def start(self) -> None:
        """Gradients as the workload counts them, and the first random number."""
        for parameter in self.target.model.parameters():
            wanted = self.by_blocks and parameter.requires_grad
            parameter.grad = torch.zeros_like(parameter) if wanted else None
        torch.manual_seed(self.seed)

    def step(self, which: str) -> Tensor:
        """Forward and backward; the loss."""
        loss: Tensor = self.modules[which](*self.target.inputs, **self.target.keywords)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def results(self, which: str) -> list[Tensor]:
        """Loss, gradients and buffers of one step, on the host."""
        with untouched(self.target.model):
            self.start()
            found = [self.step(which)]
            found += [p.grad for p in self.target.model.parameters() if p.grad is not None]
            found += list(self.target.model.buffers())
            return [tensor.detach().to("cpu", copy=True) for tensor in found]


class _Plain(nn.Module):
    """The model and its loss, nothing scheduled."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.target = target
        self.extra = count_extra_inputs(target.model, target.loss, len(target.inputs))

    def forward(self, *inputs: Any, **keywords: Any) -> Tensor:
        """The loss."""
        given = split_inputs(inputs, keywords, self.extra)
        out = self.target.model(*given.arguments, **given.keywords)
        loss = self.target.loss
        return loss_of(out) if loss is None else loss(out, *given.extra)


def _compare_results(bench: _Bench, report: Report) -> None:
    found = bench.results("schedule")
    for other in ("plain", "store-all"):
        try:
            reference = bench.results(other)
        except torch.OutOfMemoryError:
            report.notes.append(f"{other} does not fit the device: results not compared with it")
            torch.cuda.empty_cache()
            continue
        report.checks.append(_same(f"results as {other}", found, reference))


def _same(name: str, found: list[Tensor], reference: list[Tensor]) -> Check:
    if len(found) != len(reference):
        return Check(name, False, f"{len(found)} tensors instead of {len(reference)}")
    pairs = list(zip(found, reference, strict=True))
    if all(torch.equal(a, b) for a, b in pairs):
        says = f"equal to the bit: loss, gradients, buffers ({len(pairs)} tensors)"
        return Check(name, True, says)
    worst, allowed = 0.0, 0.0
    holds = True
    for a, b in pairs:
        limit = RESULT_TOLERANCE.get(b.dtype, 0.0)
        scale = max(float(b.abs().max()) if b.numel() else 0.0, 1e-30)
        gap = float((a.double() - b.double()).abs().max()) / scale if a.shape == b.shape else 1.0
        if not gap <= limit and not torch.equal(a, b):
            holds = False
        if gap > worst:
            worst, allowed = gap, limit
    return Check(
        name, holds, f"largest difference {worst:.1e} of the largest entry, allowed {allowed:.0e}"
    )


def _compare_counts(
    bench: _Bench, workload: Chain | Graph, schedule: Schedule, report: Report
) -> None:
    wanted: dict[str, int] = dict.fromkeys(workload.op_names, 0)
    for name in schedule.names:
        wanted[name] += 1
    counted = bench.modules["schedule"].run_counts
    wrong = [name for name, count in wanted.items() if counted.get(name, 0) != count]
    says = f"{sum(counted.values())} runs, {report.num_recomputed} of them recomputed"
    if wrong:
        says = f"{wrong[0]} ran {counted.get(wrong[0], 0)} times instead of {wanted[wrong[0]]}"
    report.checks.append(Check("runs", not wrong, says))


# Memory


def _compare_memory(bench: _Bench, simulation: Simulation, report: Report) -> None:
    report.predicted["peak_bytes"] = simulation.peak_bytes
    report.predicted["peak_op"] = simulation.peak_op
    report.predicted["by_kind"] = predicted_kinds(simulation)
    kind = bench.device.type
    # Whose workspaces the workload holds says which measurement it predicts.
    counts_storages = kind == "cpu" and getattr(bench.captured, "meter", "") == "storage"
    if kind == "cuda":
        peak, per_run = _cuda_peaks(bench, report)
    else:
        peak, per_run = _tracked_peaks(bench, report)
        _allocator_peaks(bench, simulation, report)
        if not counts_storages:
            peak = report.measured["allocator_peak_bytes"]
    report.measured["peak_bytes"] = peak
    report.timeline = {
        "op": simulation.schedule.names,
        "predicted_bytes": [int(size) for size in simulation.memory_bytes],
        "measured_bytes": per_run,
    }
    share, absolute = PEAK_TOLERANCE[kind]
    if not counts_storages and kind == "cpu":
        share = ALLOCATOR_TOLERANCE
    allowed = share * simulation.peak_bytes + absolute
    gap = peak - simulation.peak_bytes
    report.checks.append(
        Check(
            "peak",
            abs(gap) <= allowed,
            f"measured {peak:,} bytes, predicted {simulation.peak_bytes:,}: "
            f"{gap / simulation.peak_bytes:+.3%}, allowed {share:.1%} and {absolute:,} bytes",
        )
    )
    if report.budget_bytes is not None:
        report.checks.append(
            Check(
                "budget",
                peak <= report.budget_bytes,
                f"measured {peak:,} bytes of {report.budget_bytes:,}",
            )
        )


def predicted_kinds(simulation: Simulation) -> dict[str, int]:
    """Bytes at the peak by what they are: of a chain, activations, bundles and gradients."""
    kinds = {name: size for name, size in simulation.by_category().items() if size}
    names = {"a": "activations", "r": "bundles", "d": "gradients"}
    found = {"static": kinds.get("static", 0)}
    for tensor in simulation.live_tensors():
        kind = names.get(tensor.name[:1]) if tensor.name[1:2].isdigit() else None
        kind = "static" if tensor.name == "a0" else kind or "tensors"
        found[kind] = found.get(kind, 0) + tensor.size_bytes
    return {**found, "workspace": kinds.get("workspace", 0)}


class _Watch:
    """Told of every run by a module, it notes the tracker's peak of each, and labels storages."""

    def __init__(self, tracker: StorageTracker, num_runs: int) -> None:
        self.tracker = tracker
        self.peaks = [0] * num_runs
        self.kinds: list[dict[str, int]] = [{} for _ in range(num_runs)]

    def begin(self, number: int, run: Any, step: Any) -> None:
        """A new peak."""
        self.tracker.mark()

    def end(self, number: int, run: Any, step: Any) -> None:
        """Label what this run made, then note its peak."""
        if run.kind == "F":
            self.tracker.add(step.values[run.index + 1], "activations")
            self.tracker.label_fresh("bundles")
        else:
            self.tracker.add(list(step.gradients.values()), "gradients")
            self.tracker.label_fresh("static")  # the scalar loss, and what it is given
        self.peaks[number] = self.tracker.peak.total_bytes
        self.kinds[number] = self.tracker.kinds_at_peak()


def _tracked_peaks(bench: _Bench, report: Report) -> tuple[int, list[int]]:
    for other in ("plain", "store-all"):
        report.measured[f"{other}_peak_bytes"] = _tracked(bench, other)[0]
    peak, watch, per_run = _tracked(bench, "schedule", report.num_runs)
    if watch is not None:
        at = max(range(len(watch.peaks)), key=watch.peaks.__getitem__)
        report.measured["by_kind"] = watch.kinds[at]
        report.measured["peak_op"] = bench.modules["schedule"].run_names[at]
    return peak, per_run


def _tracked(bench: _Bench, which: str, num_runs: int = 0) -> tuple[int, _Watch | None, list[int]]:
    module = bench.modules[which]
    watch: _Watch | None = None
    per_run: list[int] = []
    highest = [0]
    with untouched(bench.target.model), no_collection():
        bench.start()
        with StorageTracker() as tracker:
            gradients = [p.grad for p in bench.target.model.parameters()]
            given = (bench.target.inputs, dict(bench.target.keywords))
            tracker.add([bench.static, gradients, given], "static")
            if num_runs and isinstance(module, ScheduledModule):
                watch = _Watch(tracker, num_runs)
                module.observer = watch
            elif num_runs and hasattr(module, "observe"):
                module.observe(lambda run: _next_run(tracker, per_run, highest))
            bench.step(which)
        if watch is not None:
            module.observer = None
            per_run = watch.peaks
            highest[0] = max(per_run)
        elif num_runs and hasattr(module, "observe"):
            _next_run(tracker, per_run, highest)
            module.observe(None)
            per_run = per_run[1:]  # what was before the first run
    return max(highest[0], tracker.peak.total_bytes), watch, per_run


def _next_run(tracker: StorageTracker, per_run: list[int], highest: list[int]) -> None:
    per_run.append(tracker.peak.total_bytes)
    highest[0] = max(highest[0], tracker.peak.total_bytes)
    tracker.mark()


def _allocator_peaks(bench: _Bench, simulation: Simulation, report: Report) -> None:
    """The allocator's own record of the same step, on top of what was there."""
    with untouched(bench.target.model):
        bench.start()
        resident = sum(
            s.nbytes()
            for s in {
                s._cdata: s
                for s in storages(
                    [
                        bench.static,
                        [p.grad for p in bench.target.model.parameters()],
                        (bench.target.inputs, dict(bench.target.keywords)),
                    ]
                )
            }.values()
        )
        [reading] = AllocatorMeter().read(lambda: bench.step("schedule"))
    report.measured["allocator_peak_bytes"] = resident + reading.peak_bytes


def _cuda_peaks(bench: _Bench, report: Report) -> tuple[int, list[int]]:
    device = bench.device
    for which in ("plain", "store-all", "schedule"):
        with untouched(bench.target.model), no_collection():
            bench.start()
            try:
                peak, _ = cuda_peak(partial(bench.step, which), device)
            except torch.OutOfMemoryError:
                report.measured[f"{which}_peak_bytes"] = None
                report.notes.append(f"{which} runs out of memory")
                torch.cuda.empty_cache()
                continue
        report.measured[f"{which}_peak_bytes"] = peak.requested_bytes
        if which == "schedule":
            report.measured["allocated_bytes"] = peak.allocated_bytes
            report.measured["reserved_bytes"] = peak.reserved_bytes
    module = bench.modules["schedule"]
    per_run: list[int] = []
    if isinstance(module, ScheduledModule):
        with untouched(bench.target.model), no_collection():
            bench.start()
            module.observer = _CudaWatch(device, per_run)
            bench.step("schedule")
            module.observer = None
    return int(report.measured["schedule_peak_bytes"] or 0), per_run


class _CudaWatch:
    """Notes the requested bytes of each run."""

    def __init__(self, device: torch.device, per_run: list[int]) -> None:
        self.device, self.per_run = device, per_run

    def begin(self, number: int, run: Any, step: Any) -> None:
        """A new peak."""
        reset_peak(self.device)

    def end(self, number: int, run: Any, step: Any) -> None:
        """Allocation is in order of calls: there is no need to wait for the device."""
        self.per_run.append(requested_peak(self.device))


# Time


def _compare_times(bench: _Bench, simulation: Simulation, report: Report, rounds: int) -> None:
    def stepping(which: str) -> Callable[[], Any]:
        def run() -> None:
            bench.start()
            bench.step(which)

        return run

    names = ["store-all", "schedule"]
    names += ["plain"] if report.measured.get("plain_peak_bytes") is not None else []
    if report.measured.get("store-all_peak_bytes", 0) is None:
        names.remove("store-all")
    times = time_interleaved(
        {name: stepping(name) for name in names}, rounds=rounds, device=bench.device
    )
    for name in names:
        report.measured[f"{name}_s"] = asdict(Timing.of(times[name]))
    report.measured["flops"] = _flops(bench)
    report.predicted["overhead"] = simulation.overhead
    report.predicted["makespan_s"] = simulation.makespan_s
    if "store-all" not in times:
        return
    found = ratio(times["schedule"], times["store-all"])
    report.measured["overhead"] = found.median_s - 1.0
    report.measured["overhead_low"] = found.low_s - 1.0
    report.measured["overhead_high"] = found.high_s - 1.0
    allowed = OVERHEAD_TOLERANCE[bench.device.type]
    # The machine may be busy: what half of the rounds say counts.
    low, high, expected = found.low_s - 1.0, found.high_s - 1.0, simulation.overhead
    says = (
        f"measured {found.median_s - 1:+.1%} (half of {rounds} rounds in {low:+.1%} to {high:+.1%})"
        f", predicted {expected:+.1%}, allowed {100 * allowed:.0f} points"
    )
    gap = max(low - expected, expected - high, 0.0)
    report.checks.append(Check("overhead", gap <= allowed, says))


def _flops(bench: _Bench) -> int | None:
    with untouched(bench.target.model):
        bench.start()
        return count_flops(lambda: bench.step("schedule"))


@contextmanager
def _restored_gradients(model: nn.Module) -> Iterator[None]:
    """Put back the gradients that the model had."""
    kept = [(p, p.grad) for p in model.parameters()]
    try:
        yield
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient


def read_report(document: Any, name: str) -> dict[str, Any]:
    """`document` if it is a report; `SchedsimError` where it is not."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise SchedsimError(
            f"{name} is no validation report", hint="schedsim validate ... -o writes one"
        )
    return document
