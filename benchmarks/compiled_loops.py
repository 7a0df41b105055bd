"""Models in loops under ``compile``, within budgets, beside torch.compile's own steps.

    OMP_NUM_THREADS=1 python benchmarks/compiled_loops.py --models yolos,hubert,detr
    OMP_NUM_THREADS=1 python benchmarks/compiled_loops.py --models gpt2 --loop lengths
    python benchmarks/compiled_loops.py --report        # the table of what is measured already

Models of the zoo train by SGD: torch.compile (inductor) first, then schedsim's backend and
``rematerialize(in_place=True)``, both with ``compile``, at shares of the bytes that
torch.compile's step takes beside parameters and inputs. Losses and gradients of the first steps
are compared, from the same seed; peaks are the CPU allocator's record of the steps behind them.
Loops are one batch, several lengths in turn, and micro-batches whose gradients are added up. A
budget that is refused is tried again with the least that the refusal names. Needs the extra
`torch`, a C++ compiler, and transformers. Each row has a process of its own, and one that is in
the file is not measured again. Seconds are of the processor, C++ compilers included.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from schedsim.validation.measure import AllocatorMeter, storage_bytes
from torch import Tensor
from zoo_models import ENTRIES
from zoo_models.subject import Subject

import schedsim
from schedsim.errors import SchedsimError

RESULTS = Path(__file__).parent / "results" / "compiled-loops.jsonl"
SHARES = (1.0, 0.75, 0.6, 0.45)
WAYS = ("backend", "in place")
LOOPS = ("one batch", "lengths", "micro-batches")
NUM_COMPARED, NUM_MEASURED = 3, 3
NUM_PARTS = 4
_LENGTH_SHARES = (1.0, 0.75, 0.5)
_FEWEST_TRIES = 6
_MOST_SECONDS = 900
_OFF_BY = 1e-3
"""A difference from torch.compile's gradients that is more than rounding."""


def batches(subject: Subject, loop: str) -> list[list[Subject]]:
    """What each step of `loop` takes, in turn: its micro-batches."""
    if loop == "lengths":
        return [[_first(subject, 1, share)] for share in _LENGTH_SHARES]
    if loop == "micro-batches":
        return [[_part(subject, number) for number in range(NUM_PARTS)]]
    return [[subject]]


def _mapped(subject: Subject, change: Callable[[Tensor], Tensor]) -> Subject:
    """`subject` with `change` made to all its tensors of more than one dimension."""

    def of(item: Any) -> Any:
        if isinstance(item, Tensor):
            return change(item) if item.dim() else item
        if isinstance(item, Mapping):
            return {key: of(part) for key, part in item.items()}
        return type(item)(of(part) for part in item) if isinstance(item, (list, tuple)) else item

    keywords = {key: of(item) for key, item in subject.keywords.items()}
    return replace(
        subject, inputs=of(subject.inputs), targets=of(subject.targets), keywords=keywords
    )


def _first(subject: Subject, dimension: int, share: float) -> Subject:
    def cut(tensor: Tensor) -> Tensor:
        return tensor.narrow(dimension, 0, int(tensor.shape[dimension] * share)).clone()

    return _mapped(subject, cut)


def _part(subject: Subject, number: int) -> Subject:
    """One sample, by its number, of each of the batch's tensors."""

    def one(tensor: Tensor) -> Tensor:
        return tensor[number % len(tensor)][None].clone()

    return _mapped(subject, one)


def _tensors(part: Subject) -> tuple[Any, ...]:
    return part.inputs, part.targets, dict(part.keywords)


class Trained:
    """A model in a loop: its losses and gradients, and the largest measured peak."""

    def __init__(self, subject: Subject, steps: list[list[Subject]], model: Any) -> None:
        self._subject, self._steps, self._model = subject, steps, model
        self.losses: list[Tensor] = []
        self.gradients: list[dict[str, Tensor]] = []
        self.peak_bytes = 0

    @property
    def resident_bytes(self) -> int:
        """Of parameters, buffers and inputs."""
        model = self._subject.model
        given = [_tensors(part) for step in self._steps for part in step]
        held = storage_bytes([[*model.parameters()], [*model.buffers()], given])
        held += storage_bytes([p.grad for p in model.parameters() if p.grad is not None])
        return held

    def run(self) -> None:
        """All steps: those that are compared, then those that are measured."""
        torch.manual_seed(7)
        random.seed(7)
        np.random.seed(7)
        model = self._subject.model
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1e-3)
        num = len(self._steps)
        for number in range((NUM_COMPARED + NUM_MEASURED) * num):
            parts = self._steps[number % num]
            if number < NUM_COMPARED * num:
                self.losses.append(self._step(parts))
                named = model.named_parameters()
                self.gradients.append({n: p.grad.clone() for n, p in named if p.grad is not None})
            else:
                resident = self.resident_bytes
                [reading] = AllocatorMeter().read(lambda parts=parts: self._step(parts))
                self.peak_bytes = max(self.peak_bytes, resident + reading.peak_bytes)
            optimizer.step()
            optimizer.zero_grad()

    def _step(self, parts: list[Subject]) -> Tensor:
        total = torch.zeros(())
        for part in parts:
            loss = part.loss_of(self._model(*part.inputs, **part.keywords)) / len(parts)
            loss.backward()
            total += loss.detach()
        return total

    def off_by(self, other: Trained) -> float:
        """The largest difference of losses and gradients.

        Of the largest entry of each, or of 1e-4 of the largest of all where that is more.
        """
        worst = max(
            float((a - b).abs() / a.abs()) for a, b in zip(self.losses, other.losses, strict=True)
        )
        for mine, its in zip(self.gradients, other.gradients, strict=True):
            largest = max(float(g.abs().max()) for g in mine.values())
            for name in mine.keys() | its.keys():
                a, b = mine.get(name), its.get(name)
                zeros = torch.zeros_like(a if a is not None else b)  # type: ignore[arg-type]
                a, b = (zeros if t is None else t for t in (a, b))
                scale = max(float(a.abs().max()), 1e-4 * largest)
                worst = max(worst, float((a - b).abs().max()) / scale)
        return worst


def made(name: str, loop: str) -> tuple[Subject, list[list[Subject]]]:
    """The model of the zoo, the same every time, and the steps of its loop."""
    torch._dynamo.reset()
    subject = ENTRIES[name].make()
    return subject, batches(subject, loop)


def by_torch_compile(name: str, loop: str) -> Trained:
    """The loop that others are compared with."""
    subject, steps = made(name, loop)
    trained = Trained(subject, steps, torch.compile(subject.model))
    trained.run()
    return trained


def ours(name: str, loop: str, way: str, budget_bytes: int) -> Trained:
    """The loop by schedsim."""
    subject, steps = made(name, loop)
    given = steps[0][0]
    # Batches that the loop holds beside the one of a step, and targets: no model sees them.
    extra = storage_bytes([_tensors(part) for step in steps for part in step])
    extra -= storage_bytes(dict(given.keywords) or given.inputs)
    if way == "backend":
        options = {"budget": budget_bytes, "compile": True, "extra_bytes": extra}
        model: Any = torch.compile(subject.model, backend="schedsim", options=options)
    else:
        model = schedsim.rematerialize(
            subject.model,
            dict(given.keywords) or given.inputs,
            budget_bytes,
            in_place=True,
            compile=True,
            extra_bytes=extra,
        )
    trained = Trained(subject, steps, model)
    trained.run()
    return trained


def measured(name: str, loop: str, way: str, share: float) -> dict[str, Any]:
    """The row of one budget."""
    expected = by_torch_compile(name, loop)
    subject, steps = made(name, loop)
    resident = Trained(subject, steps, subject.model).resident_bytes
    budget = resident + int(share * (expected.peak_bytes - resident))
    row: dict[str, Any] = {"torch_compile_bytes": expected.peak_bytes, "asked_bytes": budget}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(_FEWEST_TRIES):
            try:
                found = ours(name, loop, way, budget)
                break
            except SchedsimError as error:
                least = named_by(error)
                row.setdefault("refusal", error.message[:300])
                if least is None or least <= budget:
                    return {**row, "status": "refused"}
                budget = least
        else:
            return {**row, "status": "no budget that a refusal named was enough"}
    row |= {"status": "ok", "budget_bytes": budget, "peak_bytes": found.peak_bytes}
    row |= {"off_by": expected.off_by(found), "took_s": _processor_s()}
    said = dict.fromkeys(f"{w.category.__name__}: {w.message}"[:300] for w in caught)
    return {**row, "says": [line for line in said if "schedsim" in line or "Warning" in line][:6]}


def named_by(error: SchedsimError) -> int | None:
    """The budget that a refusal names."""
    plan = getattr(error, "plan", None)
    return None if plan is None else plan.min_feasible_bytes


def _processor_s() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return round(sum(one.ru_utime + one.ru_stime for one in used), 1)


def rows_of(path: Path) -> dict[tuple[str, str, str, float], dict[str, Any]]:
    """The rows that are measured, the last of each key."""
    text = path.read_text() if path.exists() else ""
    rows = [json.loads(line) for line in text.splitlines()]
    return {(r["model"], r["loop"], r["way"], r["share"]): r for r in rows}


def cell(row: dict[str, Any]) -> str:
    """What the table says of a row."""
    if row["status"] != "ok":
        return row["status"]
    over = "**over** " if row["peak_bytes"] > row["budget_bytes"] else ""
    least = ", the least" if row["budget_bytes"] > row["asked_bytes"] else ""
    unit = f"{over}{row['peak_bytes'] / 1e3:.1f} within {row['budget_bytes'] / 1e3:.1f}{least}"
    wrong = f"; **off by {row['off_by']:.0e}**" if row["off_by"] > _OFF_BY else ""
    return unit + wrong


def report(rows: list[dict[str, Any]]) -> str:
    """The page."""
    fit = [row for row in rows if row["status"] == "ok"]
    held = sum(row["peak_bytes"] <= row["budget_bytes"] for row in fit)
    right = sum(row["off_by"] <= _OFF_BY for row in fit)
    named = sum(row["budget_bytes"] > row["asked_bytes"] for row in fit)
    lines = [
        "# Compiled models in loops",
        "",
        "Made by `python benchmarks/compiled_loops.py`: see there. Peaks in kB; *off by* is the",
        "largest difference of a loss or gradient from torch.compile's, of its largest entry.",
        "",
        f"- Measured peak at most the budget in {held} of {len(fit)}; {named} of these have the",
        f"  least budget that a refusal named; {len(rows) - len(fit)} rows have none.",
        f"- Losses and gradients are torch.compile's within rounding in {right} of {len(fit)}.",
        "",
    ]
    shares = sorted({row["share"] for row in rows}, reverse=True)
    lines.append("| model | loop | way | " + " | ".join(f"{s:.0%}" for s in shares) + " | off by |")
    lines.append("|---|---|---|" + "---|" * (len(shares) + 1))
    for key in dict.fromkeys((r["model"], r["loop"], r["way"]) for r in rows):
        mine = {r["share"]: r for r in rows if (r["model"], r["loop"], r["way"]) == key}
        cells = [cell(mine[s]) if s in mine else "" for s in shares]
        offs = [r["off_by"] for r in mine.values() if r["status"] == "ok"]
        off = f"{max(offs):.0e}" if offs else ""
        lines.append(f"| {' | '.join(key)} | {' | '.join(cells)} | {off} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure what is asked for, each row in a process of its own, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default="yolos,hubert,detr")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--loop", default=LOOPS[0], choices=LOOPS)
    parser.add_argument("--shares", default=",".join(map(str, SHARES)))
    parser.add_argument("--again", action="store_true", help="also what the file has")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--row", nargs=2, help="a way and a share: print that one row")
    args = parser.parse_args()
    if args.row:
        torch.set_num_threads(1)
        print(json.dumps(measured(args.models, args.loop, args.row[0], float(args.row[1]))))
        return
    for name in () if args.report else args.models.split(","):
        for way in args.ways.split(","):
            for share in map(float, args.shares.split(",")):
                if args.again or (name, args.loop, way, share) not in rows_of(args.results):
                    about = {"model": name, "loop": args.loop, "way": way, "share": share}
                    row = {**about, **_apart(name, args.loop, way, share)}
                    print(row, flush=True)
                    with args.results.open("a") as file:
                        file.write(json.dumps(row) + "\n")
    latest = list(rows_of(args.results).values())
    args.results.write_text("".join(json.dumps(row) + "\n" for row in latest))
    args.results.with_suffix(".md").write_text(report(latest))


def _apart(name: str, loop: str, way: str, share: float) -> dict[str, Any]:
    command = [sys.executable, __file__, "--models", name, "--loop", loop, "--row", way, str(share)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_MOST_SECONDS, env={**os.environ}
        )
    except subprocess.TimeoutExpired:
        return {"status": f"not done in {_MOST_SECONDS} s"}
    if done.returncode:
        return {"status": "fails", "reason": done.stderr.strip()[-600:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
