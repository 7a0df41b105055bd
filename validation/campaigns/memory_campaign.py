"""Models at the sizes that people train: what CUDA's allocator needs, beside what was predicted.

Run ``python validation/run_campaign.py --device dry:a100-80gb``, or ``--memory --device cuda`` on a
machine with a CUDA device. For each model by blocks, the campaign runs the plain step, store-all, a
checkpoint at every block with and without the results of products kept, and plans at three budgets,
which bound the reserved bytes; each of these again where the allocator may reserve no more than the
budget; and loops of three steps with AdamW, where the device has room for its state. For models op
by op it runs the plain step, store-all and plans. It writes ``results/memory-<device>.jsonl`` and a
page of the results; models that are already in the file are not run again.
"""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from schedsim import pareto
from schedsim.allocators import allocate
from schedsim.allocators.fewer_repeats import one_repeat_fewer
from schedsim.api import try_plan
from schedsim.dataflow.chain import Chain
from schedsim.dataflow.graph import Graph
from schedsim.errors import InvalidScheduleError, SchedsimError
from schedsim.plans.plan import Plan
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

from ..block_level import CapturedChain
from ..block_level.scheduled_blocks import split_inputs
from ..dry_cuda import dry_device_name
from ..environment import device_memory_bytes, environment
from ..measure.cuda import cuda_peak, limited_to
from ..optimizer_requests import with_optimizer
from ..steps import PLAIN, MeasuredSteps
from ..targets import LoadedTarget, capture_target, load_target, workload_of
from ..torch_private.cuda_settings import settings_of
from ..whole_step.resident_state import resident_state
from .largest_batches import BATCH_CASES, run_batch_case
from .memory_cases import CASES, MemoryCase
from .memory_page import WELL_USED, write_memory_page

SHARES = (0.1, 0.4, 0.7)
"""Budgets: shares of the way from the least feasible one to what store-all reserves."""

LARGEST = "largest batch"
STORE_ALL, PER_BLOCK = "store-all", "a checkpoint every block"
SELECTIVE = "the same, products kept"

aten = torch.ops.aten
KEPT = (
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.convolution.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
)
"""The ops whose results selective checkpoints keep: those that take long."""


OP_EFFORT = 1.0
"""Units of work for each plan of a graph of ops."""

LOOP_SHARE = 0.4
LOOP_STEPS = 3
"""The loop's budget as a share, and its number of steps; the first makes the optimizer's state."""


class PerBlock:
    """The model with ``torch.utils.checkpoint`` around every block of a capture."""

    def __init__(
        self, target: LoadedTarget, captured: CapturedChain, *, selective: bool = False
    ) -> None:
        self.target, self.layout = target, captured.layout
        self.options: dict[str, Any] = {"use_reentrant": False}
        if selective:
            make: Any = create_selective_checkpoint_contexts
            self.options["context_fn"] = partial(make, list(KEPT))

    def __call__(self, *inputs: Any, **keywords: Any) -> Tensor:
        """The loss of one step."""
        layout = self.layout
        step = split_inputs(inputs, keywords, layout.num_extra)
        values: list[Any] = [None]
        last: dict[int, int] = {}
        for i, part in enumerate(layout.parts):
            last.update(dict.fromkeys(part.reads, i))
        for i, part in enumerate(layout.parts):
            read = [values[value] for value in part.reads]
            run = partial(part.call, step)
            values.append(checkpoint(run, *read, **self.options))
            for value in part.reads:
                if last[value] == i:
                    values[value] = None
            del read
        out = values.pop()
        loss = layout.loss
        result: Tensor = out if loss is None else loss(out, *step.extra)
        return result


def run_memory_case(case: MemoryCase, device: str) -> list[dict[str, Any]]:
    """The rows of one model."""
    started = time.perf_counter()
    target = load_target(case.target, device)
    captured = capture_target(target, case.level, keeps_gradients=case.keeps_gradients)
    workload = workload_of(captured)
    everything = Schedule.store_all(workload)
    steps = MeasuredSteps(target, captured, {STORE_ALL: everything})
    steps.keeps_gradients = case.keeps_gradients
    head = {"model": case.name, "target": case.target, "level": case.level}
    stored = _predicted(workload, everything)
    rows = [
        {**head, "method": PLAIN, **_measured(steps, PLAIN, None)},
        {**head, "method": STORE_ALL, **stored, **_measured(steps, STORE_ALL, None)},
    ]
    if isinstance(captured, CapturedChain):
        steps.modules[PER_BLOCK] = PerBlock(target, captured)
        steps.modules[SELECTIVE] = PerBlock(target, captured, selective=True)
        for method in (PER_BLOCK, SELECTIVE):
            rows.append({**head, "method": method, **_measured(steps, method, None)})
    for share, plan in _plans(workload, stored["predicted_reserved_bytes"], steps, SHARES):
        assert plan.schedule is not None
        name = f"plan for {share:.0%}".replace("%", " %")
        steps.modules[name] = captured.module(plan.schedule)
        row = {
            **head,
            "method": name,
            **_told(workload, plan),
            **_predicted(workload, plan.schedule),
            **_measured(steps, name, None),
            **_within(steps, name, plan),
        }
        rows.append({**row, **_faster(workload, plan, row["reserved_within_bytes"])})
        del steps.modules[name]
    if isinstance(captured, CapturedChain):
        rows += [{**head, **row} for row in _loops(steps, workload)]
    rows[0]["seconds"] = time.perf_counter() - started
    return rows


def _plans(
    workload: Chain | Graph, most_bytes: int, steps: MeasuredSteps, shares: Sequence[float]
) -> Iterator[tuple[float, Plan]]:
    """Plans at `shares` of the way from the least budget to `most_bytes`, the need of store-all."""
    options: dict[str, Any] = {} if isinstance(workload, Chain) else {"effort": OP_EFFORT}
    top = min(most_bytes, device_memory_bytes(steps.device))
    least = try_plan(workload, 1, "auto", **options).min_feasible_bytes or top
    for share in shares:
        plan = try_plan(workload, least + int((top - least) * share), "auto", **options)
        if plan.schedule is not None:
            yield share, plan


def _told(workload: Chain | Graph, plan: Plan) -> dict[str, Any]:
    assert plan.schedule is not None
    simulation = simulate(workload, plan.schedule)
    choice = plan.setting.allocator
    return {
        "budget_bytes": plan.budget_bytes,
        "overhead": simulation.overhead,
        "num_recomputed": simulation.num_recomputed,
        "num_emptied": 0 if choice is None else choice.num_emptied,
    }


def _faster(workload: Chain | Graph, plan: Plan, used_bytes: int | None) -> dict[str, Any]:
    """For a plan that leaves much of its budget: what the next faster ones would take.

    Of a graph: with any one of its repeated runs left out, which saves that run's time; `repeats`
    is how many there are.

    The exact curve of a chain has every budget, in requested bytes, at which persistent schedules
    get faster. `requested_bytes` is the least of those faster than the plan; `reserved_bytes` the
    least that one of them reserves among those that request no more than the budget.
    """
    assert plan.makespan_s is not None
    if used_bytes is None or used_bytes >= WELL_USED * plan.budget_bytes:
        return {}
    if not isinstance(workload, Chain):
        return _with_one_repeat_fewer(workload, plan)
    limit_s = plan.makespan_s * (1 - 1e-9)
    faster = [point for point in pareto(workload).points if point.makespan_s < limit_s]
    settings = {} if workload.recorded is None else dict(workload.recorded.allocator_options)
    reserved = []
    for point in faster:
        if point.budget_bytes > plan.budget_bytes:
            break
        other = try_plan(workload, point.budget_bytes, "frontier", allocator="exact")
        found = allocate(other.simulate(workload), num_steps=LOOP_STEPS, **settings)
        reserved.append(found.peak_reserved_bytes)
    return {
        "faster": {
            "requested_bytes": faster[0].budget_bytes if faster else None,
            "reserved_bytes": min(reserved, default=None),
        }
    }


def _with_one_repeat_fewer(graph: Graph, plan: Plan) -> dict[str, Any]:
    assert plan.schedule is not None
    settings = {} if graph.recorded is None else dict(graph.recorded.allocator_options)
    requested, reserved = [], []
    for names in one_repeat_fewer(graph, plan.schedule.names):
        try:
            simulation = simulate(graph, Schedule.from_names(names))
        except InvalidScheduleError:
            continue  # a run that may not be left out
        requested.append(simulation.peak_bytes)
        found = allocate(simulation, num_steps=LOOP_STEPS, **settings)
        reserved.append(found.peak_reserved_bytes)
    return {
        "faster": {
            "requested_bytes": min(requested, default=None),
            "reserved_bytes": min(reserved, default=None),
            "repeats": len(reserved),
        }
    }


def _loops(steps: MeasuredSteps, workload: Chain | Graph) -> Iterator[dict[str, Any]]:
    """Three steps with AdamW, by store-all and by a plan, if there is room for its state."""
    target, captured = steps.target, steps.captured
    model = target.model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    resident = [*model.parameters(), *model.buffers(), target.inputs, dict(target.keywords)]
    assert workload.recorded is not None
    state = resident_state(model, optimizer)
    # Parameters, gradients, state, and one moment as large as all parameters.
    needed = 2 * state.parameters_bytes + state.gradients_bytes + state.optimizer_bytes
    if needed > device_memory_bytes(steps.device) * 9 // 10:
        return
    recorded, _ = with_optimizer(workload.recorded, optimizer, model, resident)
    if not recorded.later_end:
        return  # no room for the optimizer's twin
    static = workload.static_bytes + state.optimizer_bytes
    looped = replace(workload, recorded=recorded, static_bytes=static)
    everything = Schedule.store_all(looped)
    told = _predicted(looped, everything, LOOP_STEPS)
    yield {"method": f"{STORE_ALL}, AdamW", **told, **_looped(steps, STORE_ALL)}
    for share, plan in _plans(looped, told["predicted_reserved_bytes"], steps, (LOOP_SHARE,)):
        assert plan.schedule is not None
        name = f"plan for {share:.0%}, AdamW".replace("%", " %")
        steps.modules[name] = captured.module(plan.schedule)
        predicted = _predicted(looped, plan.schedule, LOOP_STEPS)
        found = _looped(steps, name)
        faster = _faster(looped, plan, found.get("reserved_bytes"))
        yield {"method": name, **_told(looped, plan), **predicted, **found, **faster}
        del steps.modules[name]


def _loop(steps: MeasuredSteps, name: str) -> None:
    optimizer = torch.optim.AdamW(steps.target.model.parameters(), lr=1e-3)
    for _ in range(LOOP_STEPS):
        steps.step(name)
        optimizer.step()
        optimizer.zero_grad(set_to_none=not steps.keeps_gradients)


def _looped(steps: MeasuredSteps, name: str) -> dict[str, Any]:
    """Bytes of a loop with AdamW, written as users write it."""
    _forget(steps)
    try:
        found, _ = cuda_peak(partial(_loop, steps, name), steps.device)
    except torch.OutOfMemoryError as error:
        return {"out_of_memory": " ".join(str(error).split())[:160]}
    finally:
        _forget(steps)
    return {
        "requested_bytes": found.requested_bytes,
        "allocated_bytes": found.allocated_bytes,
        "reserved_bytes": found.reserved_bytes,
    }


def _predicted(workload: Chain | Graph, schedule: Schedule, num_steps: int = 1) -> dict[str, Any]:
    """Bytes of steps, predicted by the simulator and by the model of the allocator.

    The simulator does not count the optimizer's step, which is in the requests of a loop.
    """
    simulation = simulate(workload, schedule)
    recorded = workload.recorded
    settings = {} if recorded is None else dict(recorded.allocator_options)
    if recorded is not None and recorded.first_records:
        num_steps = max(2, num_steps)  # the first makes the gradients that later ones keep
    found = allocate(simulation, num_steps=num_steps, **settings)
    peak_bytes = simulation.peak_bytes if num_steps < LOOP_STEPS else found.bound_bytes
    return {
        "predicted_bytes": peak_bytes,
        "predicted_reserved_bytes": found.peak_reserved_bytes,
    }


def _measured(steps: MeasuredSteps, name: str, limit_bytes: int | None) -> dict[str, Any]:
    """Bytes of one step, or that memory ran out."""
    try:
        with limited_to(limit_bytes, steps.device):
            peak = steps.peak(name)
    except torch.OutOfMemoryError as error:
        _forget(steps)
        return {"out_of_memory": " ".join(str(error).split())[:160]}
    return {
        "requested_bytes": peak.total_bytes,
        "allocated_bytes": peak.allocated_bytes,
        "reserved_bytes": peak.reserved_bytes,
    }


def _within(steps: MeasuredSteps, name: str, plan: Plan) -> dict[str, Any]:
    """The step where the allocator may reserve no more than the budget of `plan`.

    A full device has its cached memory returned, so that less may be reserved than without a limit.
    """
    _forget(steps)
    found = _measured(steps, name, plan.budget_bytes)
    choice = plan.setting.allocator
    return {
        "planned_reserved_bytes": None if choice is None else choice.reserved_bytes,
        "reserved_within_bytes": found.get("reserved_bytes"),
        "fits_budget": "out_of_memory" not in found,
    }


def _forget(steps: MeasuredSteps) -> None:
    for parameter in steps.target.model.parameters():
        parameter.grad = None
    gc.collect()
    torch.cuda.empty_cache()


def run_memory_campaign(
    device: str, folder: Path, *, only: str | None = None, log: Any = print
) -> int:
    """Run what is not in the file yet, write file and page; returns the number of failed models."""
    facts = environment(device)
    key = dry_device_name() or facts["device_name"].lower().replace(" ", "-")
    path = folder / f"memory-{'dry-' if dry_device_name() else ''}{key}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    rows = _known(path, facts)
    done = {row["model"] for row in rows if "method" in row}
    failed = 0
    for case in CASES:
        if case.name in done or (only and only.lower() not in case.name.lower()):
            continue
        started = time.perf_counter()
        try:
            with settings_of(case.conf) if case.conf else nullcontext():
                rows += run_memory_case(case, device)
                gc.collect()
        except (torch.OutOfMemoryError, SchedsimError) as error:
            failed += 1
            rows.append({"model": case.name, "failed": " ".join(str(error).split())[:200]})
        gc.collect()
        torch.cuda.empty_cache()
        _write(path, facts, rows)
        log(f"{case.name}: {time.perf_counter() - started:.0f} s")
    failed += _run_batches(device, path, rows, only, log)
    write_memory_page(path)
    log(f"wrote {path} and {path.with_suffix('.md')}")
    return failed


def _run_batches(
    device: str, path: Path, rows: list[dict[str, Any]], only: str | None, log: Any
) -> int:
    """Add the rows of the largest batches that are missing; returns the number of failed models."""
    done = {row["maximize"] for row in rows if "maximize" in row}
    failed = 0
    for case in BATCH_CASES:
        name = f"{LARGEST}: {case.name}"
        if case.name in done or (only and only.lower() not in name.lower()):
            continue
        started = time.perf_counter()
        try:
            rows.append(run_batch_case(case, device))
        except (torch.OutOfMemoryError, SchedsimError) as error:
            failed += 1
            rows.append({"maximize": case.name, "failed": " ".join(str(error).split())[:200]})
        gc.collect()
        torch.cuda.empty_cache()
        _write(path, environment(device), rows)
        log(f"{name}: {time.perf_counter() - started:.0f} s")
    return failed


def _known(path: Path, facts: dict[str, str]) -> list[dict[str, Any]]:
    """Rows of the file, if the file is of the same environment."""
    if not path.is_file():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    if not rows or rows[0].get("environment") != facts:
        return []
    return [row for row in rows[1:] if "failed" not in row]


def _write(path: Path, facts: dict[str, str], rows: Sequence[dict[str, Any]]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in ({"environment": facts}, *rows))
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    os.replace(temporary, path)
