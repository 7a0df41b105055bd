"""Every model with every planner at several budgets, run on the device of this machine.

Run ``python -m schedsim.validation.campaigns.campaign`` where schedsim is installed, or
``python validation/run_campaign.py`` in a checkout. The command writes ``results/<device>.jsonl``
and a page of the results; models that are already in the file, from the same machine and versions,
are not run again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from schedsim.algorithms.chains.segment_schedule import equal_starts, segment_schedule

from schedsim import pareto
from schedsim.api import comparable, try_plan
from schedsim.dataflow.chain import Chain
from schedsim.dataflow.graph import Graph
from schedsim.errors import PlannerLimitError, SchedsimError
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import Simulation, simulate

from ..block_level.repeated_forward import untouched
from ..dry_cuda import PREFIX, dry_device_name, get_dry_device, is_dry
from ..environment import device_memory_bytes, environment, resolve_device
from ..measure import Timing, pinned_threads, ratio
from ..steps import PLAIN, MeasuredSteps
from ..targets import capture_target, load_target, workload_of
from ..validate import check_overhead, check_peak, check_results, check_runs, kept_gradients
from ..validate import meter_of as meter_for
from .campaign_page import write_page
from .random_schedules import random_schedule

BUDGETS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
"""Shares of the way from the least feasible budget to the store-all peak."""

STORE_ALL = "store_all"
NUM_RANDOM = 4


@dataclass(frozen=True)
class Case:
    """A model of the campaign.

    Attributes
    ----------
    name
        Name in the tables.
    target
        The text that `load_target` reads.
    level
        ``"block"`` or ``"op"``.
    segments
        Numbers of equal segments, whose schedules are run besides the planners' plans.
    """

    name: str
    target: str
    level: str = "block"
    segments: tuple[int, ...] = ()


def cpu_cases() -> list[Case]:
    """Models small enough for minutes on one core; depths are those of the originals."""
    gpt2 = "model:gpt2-large,hidden=128,heads=4,seq=128,vocab=2000,batch=2"
    vit = "model:vit-b16,hidden=192,heads=3,image=112,classes=100,batch=4"
    return [
        Case("MLP, 20 layers", "model:mlp", segments=(3,)),
        Case("GPT-2 774M, narrowed", gpt2),
        Case(
            "Llama, 16 layers, narrowed",
            "model:llama3.2-1b,hidden=128,heads=4,kv_heads=2,ffn=512,vocab=2000,seq=128,batch=2",
        ),
        Case("ViT-B/16, narrowed", vit),
        Case("ResNet-152, narrowed", "model:resnet152,width=16,image=64,classes=100,batch=4"),
        Case("U-Net, narrowed", "model:unet,width=16,image=64,batch=2"),
        Case("LSTM", "model:lstm,seq=96,hidden=128,features=64,batch=64,steps=4"),
        Case("ViT-B/16, narrowed, by op", vit, level="op"),
    ]


def cuda_cases(memory_bytes: int) -> list[Case]:
    """Models at the sizes that people train, with batches scaled to the memory of the device."""
    scale = memory_bytes / (139 * 2**30)

    def batch(of_139_gib: int) -> int:
        return max(1, int(of_139_gib * scale))

    return [
        Case("MLP, 20 layers", "model:mlp", segments=(3,)),
        Case("GPT-2 medium", f"model:gpt2-medium,batch={batch(16)}"),
        Case("GPT-2 774M", f"model:gpt2-large,batch={batch(12)}"),
        Case("GPT-2 XL", f"model:gpt2-xl,batch={batch(8)}"),
        Case("Llama 1B, bf16", f"model:llama3.2-1b,seq=2048,batch={batch(8)},dtype=bf16"),
        Case("ViT-B/16", f"model:vit-b16,batch={batch(256)}"),
        Case("ResNet-152", f"model:resnet152,batch={batch(192)}"),
        Case("U-Net", f"model:unet,image=512,batch={batch(16)}"),
        Case("LSTM", f"model:lstm,seq=512,batch={batch(256)}"),
        Case("ViT-B/16, by op", f"model:vit-b16,batch={batch(128)}", level="op"),
    ]


@dataclass
class _Wanted:
    """A row to fill: a planner's answer at a budget."""

    planner: str
    budget_bytes: int | None
    status: str
    schedule: Schedule | None
    planning_s: float | None = None


def run_case(case: Case, device: str, *, seconds: float, log: Any = print) -> list[dict[str, Any]]:
    """The rows of one model; the first row has the kind ``model``.

    Parameters
    ----------
    seconds
        Seconds for timing, from which the number of rounds follows.
    """
    started = time.perf_counter()
    target = load_target(case.target, device)
    captured = capture_target(target, case.level)
    workload = workload_of(captured)
    wanted = _plans(workload, case)
    distinct: dict[str, Schedule] = {STORE_ALL: Schedule.store_all(workload)}
    for row in wanted:
        if row.schedule is not None:
            distinct.setdefault(_key(row.schedule, workload), row.schedule)
    log(f"{case.name}: {len(wanted)} plans, {len(distinct)} schedules")
    steps = MeasuredSteps(target, captured, distinct)
    with kept_gradients(target.model), untouched(target.model):
        found = _measured(steps, workload, distinct)
        # Random schedules test bytes and results, not times.
        worth = {_key(r.schedule, workload) for r in wanted if r.schedule and r.planner != "random"}
        _timed(steps, [n for n in (PLAIN, *distinct) if n in {PLAIN, *worth}], found, seconds)
    head = {
        "kind": "model",
        "model": case.name,
        "target": case.target,
        "level": case.level,
        "workload": workload.kind,
        "num_ops": len(workload.op_names),
        "num_parameters": sum(p.numel() for p in target.model.parameters()),
        "static_bytes": workload.static_bytes,
        "plain": found[PLAIN],
        "store_all": found[STORE_ALL],
        "curve": _curve(workload),
        "notes": list(captured.notes),
        "seconds": time.perf_counter() - started,
    }
    rows = [_row(case, row, found, workload) for row in wanted]
    return [head, *rows]


def _plans(workload: Chain | Graph, case: Case) -> list[_Wanted]:
    everything = simulate(workload, Schedule.store_all(workload)).peak_bytes
    rows: list[_Wanted] = []
    if isinstance(workload, Chain):
        least = try_plan(workload, everything, "frontier").min_feasible_bytes or everything
        budgets = [least + int((everything - least) * share) for share in BUDGETS]
        for planner in comparable(workload):
            for budget in budgets:
                try:
                    plan = try_plan(workload, budget, planner)
                except PlannerLimitError:
                    continue
                rows.append(_Wanted(planner, budget, plan.status, plan.schedule, plan.planning_s))
        for number in case.segments:
            schedule = segment_schedule(workload, equal_starts(workload.num_stages, number))
            rows.append(_Wanted(f"{number} segments", None, "feasible", schedule))
        replay = try_plan(workload, 2**53 - 1, "recompute_all").schedule
        rows.append(_Wanted("every block replayed", None, "feasible", replay))
    else:
        rows.append(_Wanted(STORE_ALL, everything, "optimal", Schedule.store_all(workload), None))
    rng = np.random.default_rng(0)
    for _ in range(NUM_RANDOM):
        rows.append(_Wanted("random", None, "feasible", random_schedule(workload, rng)))
    return rows


def _key(schedule: Schedule, workload: Chain | Graph) -> str:
    if schedule == Schedule.store_all(workload):
        return STORE_ALL
    return hashlib.sha256(" ".join(schedule.names).encode()).hexdigest()[:12]


def _measured(
    steps: MeasuredSteps, workload: Chain | Graph, distinct: dict[str, Schedule]
) -> dict[str, dict[str, Any]]:
    """For each schedule and the plain model: bytes, results and counts; or that memory ran out."""
    found: dict[str, dict[str, Any]] = {}
    reference: dict[str, list[torch.Tensor]] = {}
    meter = meter_for(steps.captured, steps.device)
    for name in (PLAIN, *distinct):
        row: dict[str, Any] = {}
        found[name] = row
        try:
            peak, results = steps.run(name)
            for other in reference:
                check = check_results(other, results, reference[other])
                row[f"as_{other}"] = check.says if check.holds else f"NOT {check.says}"
            if name in (PLAIN, STORE_ALL):
                reference[name] = results
            row["peak_bytes"] = peak.total_bytes
            if meter == "allocator":
                row["peak_bytes"] = steps.allocator_peak(name)
        except (torch.OutOfMemoryError, MemoryError) as error:
            row["out_of_memory"] = " ".join(str(error).split())[:120]
            if steps.device.type == "cuda":
                torch.cuda.empty_cache()
            continue
        if name == PLAIN:
            continue
        simulation = simulate(workload, distinct[name])
        row.update(_predicted(simulation))
        row["peak_holds"] = check_peak(row["peak_bytes"], simulation.peak_bytes, meter).holds
        row["runs_hold"] = check_runs(steps, simulation, name).holds
    return found


def _predicted(simulation: Simulation) -> dict[str, Any]:
    return {
        "predicted_peak_bytes": simulation.peak_bytes,
        "predicted_overhead": simulation.overhead,
        "num_recomputed": simulation.num_recomputed,
        "num_runs": simulation.num_runs,
    }


def _timed(
    steps: MeasuredSteps, names: Sequence[str], found: dict[str, dict[str, Any]], seconds: float
) -> None:
    """Add times. Each is measured right beside store-all, so that both see the same load."""
    names = [name for name in names if "out_of_memory" not in found[name]]
    if not names:
        return
    base = STORE_ALL if STORE_ALL in names else names[0]
    once = steps.times([base], 1)[base][0]
    shares = [2.0 + found[name].get("predicted_overhead", 0.0) for name in names]
    rounds = int(min(15, max(3, seconds / max(once * sum(shares), 1e-9))))
    times: dict[str, list[float]] = {name: [] for name in names}
    beside: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(rounds):
        for name in names:
            pair = [base, name][:: 1 if round_ % 2 else -1]
            taken = steps.times(pair, 1, warm_up=0) if name != base else steps.times([base], 1)
            times[name] += taken[name]
            beside[name] += taken[base]
    for name in names:
        found[name]["step_s"] = asdict(Timing.of(times[name]))
        if base != STORE_ALL:
            continue
        over = ratio(times[name], beside[name])
        found[name]["overhead"] = over.median_s - 1.0
        found[name]["overhead_low"] = over.low_s - 1.0
        found[name]["overhead_high"] = over.high_s - 1.0
        if name != PLAIN:
            expected = found[name]["predicted_overhead"]
            check = check_overhead(over, expected, steps.device.type)
            found[name]["overhead_holds"] = check.holds


def _curve(workload: Chain | Graph) -> list[tuple[int, float]]:
    """Break points (bytes, overhead) of the exact curve, thinned to some hundreds."""
    if not isinstance(workload, Chain):
        return []
    points = pareto(workload).points
    every = max(1, len(points) // 300)
    kept = [*points[::every], points[-1]]
    return [(point.budget_bytes, point.overhead) for point in kept]


def _row(
    case: Case, row: _Wanted, found: dict[str, dict[str, Any]], workload: Chain | Graph
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "kind": "plan",
        "model": case.name,
        "level": case.level,
        "planner": row.planner,
        "budget_bytes": row.budget_bytes,
        "status": row.status,
        "planning_s": row.planning_s,
    }
    if row.schedule is None:
        return document
    key = _key(row.schedule, workload)
    document |= {"schedule": key, **found[key]}
    if row.budget_bytes is not None and "peak_bytes" in document:
        document["budget_holds"] = document["peak_bytes"] <= row.budget_bytes
    return document


# The file


def _known(path: Path, facts: dict[str, str]) -> tuple[list[dict[str, Any]], set[str]]:
    """Rows of the file and names of its models, if the file is of the same environment."""
    if not path.is_file():
        return [], set()
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    if not rows or rows[0].get("environment") != facts:
        return [], set()
    return rows[1:], {row["model"] for row in rows if row["kind"] == "model"}


def _write(path: Path, facts: dict[str, str], rows: Sequence[dict[str, Any]]) -> None:
    head = {"kind": "environment", "environment": facts}
    text = "".join(json.dumps(row) + "\n" for row in (head, *rows))
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def run_campaign(
    device: str,
    folder: Path,
    *,
    only: str | None = None,
    seconds: float = 12.0,
    log: Any = print,
) -> int:
    """Run what is not in the file yet, write file and page; returns the number of failed models."""
    facts = environment(device)
    path = folder / f"{torch.device(device).type}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    rows, done = _known(path, facts)
    cuda = torch.device(device).type == "cuda"
    cases = cuda_cases(device_memory_bytes(device)) if cuda else cpu_cases()
    failed = 0
    for case in cases:
        if case.name in done or (only and only.lower() not in case.name.lower()):
            continue
        started = time.perf_counter()
        try:
            rows += run_case(case, device, seconds=seconds, log=log)
        except (torch.OutOfMemoryError, SchedsimError) as error:
            failed += 1
            says = " ".join(str(error).split())[:200]
            rows.append({"kind": "failure", "model": case.name, "says": says})
            log(f"{case.name}: {says}")
        if cuda:
            torch.cuda.empty_cache()
        _write(path, facts, rows)
        log(f"{case.name}: {time.perf_counter() - started:.0f} s")
    write_page(folder)
    log(f"wrote {path} and {folder / 'README.md'}")
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", help="cpu, cuda or dry:a100-80gb; cuda where it is")
    parser.add_argument("--only", help="models whose name holds this")
    parser.add_argument("--seconds", type=float, default=12.0, help="of timing per model")
    parser.add_argument("--threads", type=int, help="intra-op threads")
    default = Path(__file__).parents[1] / "results"
    parser.add_argument("-o", "--output", type=Path, default=default, help="folder of results")
    parser.add_argument("--memory", action="store_true", help="memory alone, at full size, on CUDA")
    given = parser.parse_args(arguments)
    try:
        _start_over_on(given.device, sys.argv[1:] if arguments is None else arguments)
        device = resolve_device(given.device)
        if given.memory or is_dry():
            from .memory_campaign import run_memory_campaign

            failed = run_memory_campaign(device, given.output, only=given.only, log=_log)
            return 1 if failed else 0
        with pinned_threads(given.threads):
            failed = run_campaign(
                device, given.output, only=given.only, seconds=given.seconds, log=_log
            )
    except SchedsimError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return 2
    return 1 if failed else 0


def _start_over_on(device: str | None, arguments: Sequence[str]) -> None:
    """Start this command again on the dry device, if one is named and not used by this process."""
    if device is None or not device.startswith(PREFIX):
        return
    key = device.removeprefix(PREFIX)
    if dry_device_name() == key:
        return
    from ..dry_cuda.launch import start

    words = ["-m", "schedsim.validation.campaigns.campaign", *arguments]
    start([sys.executable, *words], get_dry_device(key))


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


__all__ = ["Case", "cpu_cases", "cuda_cases", "main", "run_campaign"]

if __name__ == "__main__":
    sys.exit(main())
