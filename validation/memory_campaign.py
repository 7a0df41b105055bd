"""Models at the sizes that people train: what CUDA's allocator needs, against what was predicted.

``python validation/run_campaign.py --device dry:a100-80gb``, or ``--memory --device cuda`` on a
device that is there. Of each model: the plain step, store-all, a checkpoint every block, with and
without the results of products kept, and plans at three budgets, which bound what is reserved; each
of these again where the allocator may reserve no more than the budget. It writes
``results/memory-<device>.jsonl`` and a page of it; models that are in the file are not run again.
"""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from schedsim.allocators import allocate
from schedsim.api import try_plan
from schedsim.dataflow.chain import Chain
from schedsim.dataflow.graph import Graph
from schedsim.errors import SchedsimError
from schedsim.plans.plan import Plan
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

from .block_level import CapturedChain
from .block_level.scheduled_blocks import split_inputs
from .dry_cuda import dry_device_name
from .environment import device_memory_bytes, environment
from .memory_page import write_memory_page
from .steps import PLAIN, MeasuredSteps
from .targets import LoadedTarget, capture_target, load_target, workload_of

SHARES = (0.1, 0.4, 0.7)
"""Budgets: shares of the way from the least feasible one to what store-all reserves."""

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
"""What selective checkpoints keep: the ops that take long."""


@dataclass(frozen=True)
class MemoryCase:
    """A model of the campaign: its name in the tables, and the target."""

    name: str
    target: str


CASES = (
    MemoryCase("ResNet-152, 224 x 224, batch 36", "model:resnet152,batch=36"),
    MemoryCase("ViT-B/16, batch 64", "model:vit-b16,batch=64"),
    MemoryCase("GPT-2 774M, 1024 tokens, batch 4", "model:gpt2-large,batch=4"),
    MemoryCase("GPT-2 XL, 1024 tokens, batch 8", "model:gpt2-xl,batch=8"),
    MemoryCase(
        "Llama 1B, bf16, 8192 tokens, batch 2", "model:llama3.2-1b,seq=8192,batch=2,dtype=bf16"
    ),
    MemoryCase(
        "Llama 3 8B, bf16, 8192 tokens, batch 1", "model:llama3-8b,seq=8192,batch=1,dtype=bf16"
    ),
    MemoryCase(
        "LLaMA-7B, bf16, 2048 tokens, batch 4", "model:llama2-7b,seq=2048,batch=4,dtype=bf16"
    ),
    MemoryCase("U-Net, 512 x 512, batch 16", "model:unet,image=512,batch=16"),
    MemoryCase("LSTM, 512 steps, batch 256", "model:lstm,seq=512,batch=256"),
)


class PerBlock:
    """The model with ``torch.utils.checkpoint`` around every block, by the blocks of a capture."""

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


@contextmanager
def limited_to(limit_bytes: int | None, device: torch.device) -> Iterator[None]:
    """Let the allocator reserve no more than `limit_bytes`; all of the device for ``None``."""
    total = device_memory_bytes(device)
    share = 1.0 if limit_bytes is None else min(1.0, limit_bytes / total)
    torch.cuda.set_per_process_memory_fraction(share, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def run_memory_case(case: MemoryCase, device: str) -> list[dict[str, Any]]:
    """The rows of one model."""
    started = time.perf_counter()
    target = load_target(case.target, device)
    captured = capture_target(target, "block")
    workload = workload_of(captured)
    assert isinstance(captured, CapturedChain)
    everything = Schedule.store_all(workload)
    steps = MeasuredSteps(target, captured, {STORE_ALL: everything})
    steps.modules[PER_BLOCK] = PerBlock(target, captured)
    steps.modules[SELECTIVE] = PerBlock(target, captured, selective=True)
    head = {"model": case.name, "target": case.target}
    stored = _predicted(workload, everything)
    rows = [
        {**head, "method": PLAIN, **_measured(steps, PLAIN, None)},
        {**head, "method": STORE_ALL, **stored, **_measured(steps, STORE_ALL, None)},
        {**head, "method": PER_BLOCK, **_measured(steps, PER_BLOCK, None)},
        {**head, "method": SELECTIVE, **_measured(steps, SELECTIVE, None)},
    ]
    top = min(stored["predicted_reserved_bytes"], device_memory_bytes(steps.device))
    least = try_plan(workload, 1, "auto").min_feasible_bytes or top
    for share in SHARES:
        budget = least + int((top - least) * share)
        plan = try_plan(workload, budget, "auto")
        if plan.schedule is None:
            continue
        simulation = simulate(workload, plan.schedule)
        name = f"plan for {share:.0%}".replace("%", " %")
        steps.modules[name] = captured.module(plan.schedule)
        rows.append(
            {
                **head,
                "method": name,
                "budget_bytes": budget,
                **_predicted(workload, plan.schedule),
                "overhead": simulation.overhead,
                "num_recomputed": simulation.num_recomputed,
                **_measured(steps, name, None),
                **_within(steps, name, plan),
            }
        )
        del steps.modules[name]
    rows[0]["seconds"] = time.perf_counter() - started
    return rows


def _predicted(workload: Chain | Graph, schedule: Schedule) -> dict[str, Any]:
    """Bytes of one step, by the simulator and by the model of the allocator."""
    simulation = simulate(workload, schedule)
    recorded = workload.recorded
    settings = {} if recorded is None else dict(recorded.allocator_options)
    return {
        "predicted_bytes": simulation.peak_bytes,
        "predicted_reserved_bytes": allocate(simulation, **settings).peak_reserved_bytes,
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

    A full device has cached memory returned to it, so that less may be reserved than without limit.
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
    """Run what is not in the file yet, write file and page; the number of models that failed."""
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
            rows += run_memory_case(case, device)
        except (torch.OutOfMemoryError, SchedsimError) as error:
            failed += 1
            rows.append({"model": case.name, "failed": " ".join(str(error).split())[:200]})
        gc.collect()
        torch.cuda.empty_cache()
        _write(path, facts, rows)
        log(f"{case.name}: {time.perf_counter() - started:.0f} s")
    write_memory_page(path)
    log(f"wrote {path} and {path.with_suffix('.md')}")
    return failed


def _known(path: Path, facts: dict[str, str]) -> list[dict[str, Any]]:
    """Rows of the file, where it is of the same environment."""
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
