"""The largest batch that a budget allows, run where the allocator may reserve no more than it.

For each model, ``schedsim plan TARGET --maximize batch --mem BUDGET`` says which batch is the
largest. The step of its plan is run with that budget alone, and so is a step with one sample more,
by the plan that reserves least of those found.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import schedsim
from schedsim.api import try_plan
from schedsim.errors import SchedsimError
from schedsim.files.document import from_dict
from schedsim.plans.plan import Plan
from schedsim.units import parse_bytes

from ..measure.cuda import limited_to
from ..steps import MeasuredSteps
from ..targets import capture_target, load_target, workload_of
from .memory_page import UNCAPTURED

PLANNED = "planned"


@dataclass(frozen=True)
class BatchCase:
    """A model whose batch is left open, and a budget in words."""

    name: str
    target: str
    budget: str


BATCH_CASES = (
    BatchCase("ResNet-152, 224 x 224", "model:resnet152", "4GB"),
    BatchCase("ViT-B/16", "model:vit-b16", "8GB"),
    BatchCase("GPT-2 774M, 1024 tokens", "model:gpt2-large", "16GB"),
    BatchCase("GPT-2 XL, 1024 tokens", "model:gpt2-xl", "40GB"),
    BatchCase("Llama 1B, bf16, 8192 tokens", "model:llama3.2-1b,seq=8192,dtype=bf16", "60GB"),
    BatchCase(
        "Llama 3 8B, LoRA of rank 16, bf16, 2048 tokens",
        "model:llama3-8b,seq=2048,dtype=bf16,lora=16",
        "40GB",
    ),
    BatchCase("U-Net, 512 x 512", "model:unet,image=512", "16GB"),
    BatchCase("LSTM, 512 steps", "model:lstm,seq=512", "4GB"),
)


def run_batch_case(
    case: BatchCase, device: str, ask: Callable[[BatchCase, str], dict[str, Any]] | None = None
) -> dict[str, Any]:
    """The row of one model.

    Parameters
    ----------
    ask
        Gives the document of ``--maximize batch``; by default the command is run.
    """
    found = (ask or _asked)(case, device)
    budget_bytes = parse_bytes(case.budget)
    largest, proof = int(found["largest"]["size"]), str(found["proof"])
    plan = from_dict(found["plan"])
    assert isinstance(plan, Plan)
    row = {
        "maximize": case.name,
        "target": case.target,
        "budget_bytes": budget_bytes,
        "largest": largest,
        "proof": proof,
        "checked_to": int(found["checked_to"]),
    }
    row |= {f"fits_{key}": value for key, value in _run(case, largest, device, plan).items()}
    row |= {f"beyond_{key}": value for key, value in _beyond(case, largest + 1, device).items()}
    return row


def _asked(case: BatchCase, device: str) -> dict[str, Any]:
    """What the command says, in a process of its own on this device."""
    words = ["plan", case.target, "--maximize", "batch", "--mem", case.budget, "--json"]
    root = str(Path(schedsim.__file__).resolve().parents[1])
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        [sys.executable, "-m", "schedsim", *words, "--device", device],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SchedsimError(f"schedsim {' '.join(words)}: {done.stderr.strip()[-300:]}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def _run(case: BatchCase, batch: int, device: str, plan: Plan | None) -> dict[str, Any]:
    """One step with `batch` within the budget, by `plan` or by the plan that reserves least."""
    target = load_target(f"{case.target},batch={batch}", device)
    captured = capture_target(target)
    workload, budget_bytes = workload_of(captured), parse_bytes(case.budget)
    planned = ""
    if plan is None:
        any_plan: dict[str, Any] = {"allocator_options": {"any_plan": True}}
        asked = plan = try_plan(workload, budget_bytes, "auto", **any_plan)
        planned = asked.status
        if asked.min_feasible_bytes and not asked.feasible:
            plan = try_plan(workload, asked.min_feasible_bytes, "auto", **any_plan)
    if plan.schedule is None:
        return {"planned": planned}
    steps = MeasuredSteps(target, captured, {PLANNED: plan.schedule})
    choice = plan.setting.allocator
    found: dict[str, Any] = {
        "planned": planned or plan.status,
        "predicted_reserved_bytes": None if choice is None else choice.reserved_bytes,
    }
    gc.collect()
    try:
        with limited_to(budget_bytes, steps.device):
            found["reserved_bytes"] = steps.peak(PLANNED).reserved_bytes
    except torch.OutOfMemoryError as error:
        found["out_of_memory"] = _words(error)
    return found


def _beyond(case: BatchCase, batch: int, device: str) -> dict[str, Any]:
    gc.collect()
    torch.cuda.empty_cache()
    try:
        return _run(case, batch, device, None)
    except torch.OutOfMemoryError as error:
        # While it is captured, block by block, with the whole device: there is no plan to run.
        return {"planned": UNCAPTURED, "out_of_memory": _words(error)}


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:160]
