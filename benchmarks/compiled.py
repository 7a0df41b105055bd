"""Compiled steps within budgets, beside every setting that torch.compile itself offers.

    OMP_NUM_THREADS=1 python benchmarks/compiled.py --quick --models gpt2,llama
    python benchmarks/compiled.py --report          # the table of what is measured already

Needs the extra `torch` and a C++ compiler. Each setting of torch.compile (inductor, the whole step
as one graph) is measured, then ``rematerialize(compile=True)`` at the setting's measured peak. Both
are timed alternately with plain torch.compile. Then ``rematerialize(compile=True)`` is measured at
five budgets. Peaks are the CPU allocator's record of a step, resident bytes included; times are
processor time on one thread. Gradients are compared with plain torch.compile's from the same seed.
On both sides the C library is told to keep freed memory, as the CUDA allocator does. By its own
rule it would return some of it to the system, for some orders of requests, and those pages would be
filled with zeros again in each step. Rows go to a file as they are made, and a row in the file is
not measured again. A model takes about ten minutes of two idle cores. With ``--runs 3`` the five
budgets are captured, planned and measured that often, and with ``--setting-runs 3`` the settings
too, each compiled again: two compilations of one setting differ by up to 4 % of their time. The
table has medians.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from peer_methods.eager import HEAVY
from peer_methods.measure import machine_load
from peer_methods.subjects import TITLES, Subject, load_subject
from schedsim.validation.measure import AllocatorMeter, storage_bytes
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import schedsim
from schedsim.errors import SchedsimError

RESULTS = Path(__file__).parent / "results"
MODELS = ("gpt2", "llama", "vit", "resnet", "unet", "hf-gpt2")
SHARES = (1.0, 0.8, 0.6, 0.5, 0.4)
EFFORT = 4.0
KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""glibc's settings, which are read once, before Python begins."""

QUICK_BUDGETS = (0.7, 0.5, 0.3, 0.1, 0.0)
ALL_BUDGETS = (0.9, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.0)


class Timed:
    """A step that can be measured: a function that gives the loss, and the model of the gradients.

    Parameters
    ----------
    settings
        Of torch._functorch.config while it compiles.
    """

    def __init__(self, subject: Subject, loss: Callable[[], Tensor], **settings: Any) -> None:
        self.subject, self.loss, self.settings = subject, loss, settings
        held: list[Any] = [*subject.model.parameters(), *subject.model.buffers(), subject.inputs]
        if isinstance(subject.loss, nn.Module):
            held += list(subject.loss.buffers())
        self.resident_bytes = storage_bytes(held)

    def clear(self) -> None:
        """Drop the gradients, and start from the first random number."""
        for parameter in self.subject.model.parameters():
            parameter.grad = None
        torch.manual_seed(0)

    def run(self) -> None:
        """Forward and backward."""
        with torch._functorch.config.patch(self.settings):
            self.loss().backward()  # type: ignore[no-untyped-call]

    def peak_bytes(self) -> int:
        """Measured, when warm."""
        for _ in range(2):
            self.clear()
            self.run()
        self.clear()
        [reading] = AllocatorMeter().read(self.run)
        self.clear()
        return self.resident_bytes + reading.peak_bytes

    def gradients(self) -> list[Tensor]:
        """Gradients of a step that starts from the first random number."""
        self.clear()
        self.run()
        found = [p.grad for p in self.subject.model.parameters() if p.grad is not None]
        self.clear()
        return found


def compiled(subject: Subject, title: str, **settings: Any) -> Timed:
    """The whole step under torch.compile, for its sizes alone.

    Dynamo remembers a function's sizes by its name and line, in a table that outlives the function.
    Left to itself, it would compile the second model of a process for open sizes, whose code is
    slower.
    """

    def forward() -> Tensor:
        return subject.loss(subject.output())

    # Dynamo remembers functions by their code: each has code of its own.
    code = forward.__code__.replace(co_name="".join(c if c.isalnum() else "_" for c in title))
    own = FunctionType(code, globals(), code.co_name, None, forward.__closure__)
    return Timed(subject, torch.compile(own, fullgraph=False, dynamic=False), **settings)


def checkpointed(subject: Subject, title: str, policy: bool) -> Timed:
    """Every block a checkpoint inside of the compiled step; with `policy`, heavy ops are kept."""
    context = partial(create_selective_checkpoint_contexts, list(HEAVY))
    more = {"context_fn": context} if policy else {}
    for block in subject.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, **more)
    return compiled(subject, title)


def peers(name: str, quick: bool) -> dict[str, Callable[[], Timed]]:
    """The settings of torch.compile, each on a model of its own with the same weights."""

    def make(build: Callable[..., Timed], *args: Any, **settings: Any) -> Callable[[], Timed]:
        return lambda: build(load_subject(name, quick=quick), *args, **settings)

    found = {"min-cut default": make(compiled, "default")}
    for budget in QUICK_BUDGETS if quick else ALL_BUDGETS:
        title = f"activation_memory_budget {budget:g}"
        found[title] = make(compiled, title, activation_memory_budget=budget)
    if not quick:
        for solver in ("greedy", "ilp"):
            for budget in (0.7, 0.3, 0.1):
                title = f"activation_memory_budget {budget:g}, {solver}"
                found[title] = make(
                    compiled,
                    title,
                    activation_memory_budget=budget,
                    activation_memory_budget_solver=solver,
                )
    found["checkpoint per block inside"] = make(checkpointed, "blocks", False)
    found["selective checkpoint inside"] = make(checkpointed, "selective", True)
    return found


class Ours:
    """``rematerialize(compile=True)`` of one subject: captured and compiled once."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        begun = time.process_time()
        self.module = schedsim.rematerialize(
            subject.model,
            subject.inputs,
            "100%",
            subject.loss,
            compile=True,
            effort=EFFORT,
            time_limit_s=120.0,
        )
        self.made_s = time.process_time() - begun

    def at(self, budget_bytes: int) -> tuple[dict[str, Any], Timed | None]:
        """The step within `budget_bytes`, measured."""
        self.module.replan(budget_bytes)
        begun = time.process_time()
        try:
            planned = self.module.prepare(*self.subject.inputs)
        except SchedsimError as error:
            plan = getattr(error, "plan", None)
            proven = plan is not None and plan.least.refutes(budget_bytes)
            reason = str(error).partition("\n")[0][:300]
            return {"status": "infeasible", "proven": proven, "reason": reason}, None
        step = Timed(self.subject, partial(planned.module, *self.subject.inputs))
        row = {
            "status": planned.plan.status,
            "budget_bytes": budget_bytes,
            "planned_bytes": planned.plan.peak_bytes,
            "peak_bytes": step.peak_bytes(),
            "overhead": planned.plan.overhead,
            "level": planned.captured.level,
            "compiled": any("compiled:" in note for note in planned.captured.notes),
            "replanned_s": time.process_time() - begun,
        }
        return row, step


def timed(steps: dict[str, Timed], rounds: int) -> dict[str, list[float]]:
    """Processor seconds of each step; every round runs each step once."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            step.clear()
            begun = time.process_time()
            step.run()
            found[name].append(time.process_time() - begun)
            step.clear()
    return found


def ratio(times: dict[str, list[float]], one: str, other: str) -> float:
    """Median over rounds."""
    return statistics.median(a / b for a, b in zip(times[one], times[other], strict=True))


def worst(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference of gradients, as a share of the largest entry of each."""
    pairs = zip(found, expected, strict=True)
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-12)) for a, b in pairs)


def exact_gradients(name: str, quick: bool) -> list[Tensor] | None:
    """Gradients of the eager step in float64; ``None`` where random numbers would be others."""
    subject = load_subject(name, quick=quick)
    if any(isinstance(module, nn.Dropout) and module.p > 0 for module in subject.model.modules()):
        return None
    subject.model.double()
    if isinstance(subject.loss, nn.Module):
        subject.loss.double()
    inputs = tuple(
        x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in subject.inputs
    )
    exact = replace(subject, inputs=inputs)
    return Timed(exact, lambda: exact.loss(exact.output())).gradients()


class Rows:
    """One row per model and setting, kept as they are made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_text() if path.exists() else ""
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]

    def has(self, model: str, setting: str, run: int = 0) -> bool:
        """Whether that is measured."""
        known = ((r["model"], r["setting"], r.get("run", 0)) for r in self.rows)
        return (model, setting, run) in known

    def add(self, **row: Any) -> None:
        """Keep a row."""
        self.rows.append(row)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("".join(json.dumps(one) + "\n" for one in self.rows))
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}, flush=True)


def measure(name: str, rows: Rows, args: argparse.Namespace, run: int) -> None:
    """All rows of a model in a run; the first ones have the settings of torch.compile."""
    found_peers = {} if args.ours or run >= args.setting_runs else peers(name, args.quick)
    wanted = {title: make for title, make in found_peers.items() if not rows.has(name, title, run)}
    shares = [share for share in SHARES if not rows.has(name, f"ours {share:.0%}", run)]
    if not wanted and not shares:
        return
    base = compiled(load_subject(name, quick=args.quick), "base")
    begun = time.process_time()
    base.clear()
    base.run()
    base_s = time.process_time() - begun
    expected = base.gradients()
    exact = exact_gradients(name, args.quick)
    ours = Ours(load_subject(name, quick=args.quick))
    most = ours.module.plan.peak_bytes
    assert most is not None
    about = {"model": name, "quick": args.quick, "torch": torch.__version__, "memory": "kept"}
    about["run"] = run
    first = True
    for share in shares:
        resident = base.resident_bytes
        row, step = ours.at(resident + int((most - resident) * share))
        if step is not None:
            times = timed({"base": base, "ours": step}, args.rounds)
            row["over_compile"] = ratio(times, "ours", "base")
            left = step.gradients()
            row["gradients"] = worst(left, expected)
            if exact is not None:
                row["from_float64"] = worst(left, exact)
                row["compile_from_float64"] = worst(expected, exact)
        if first:
            row |= {"made_s": ours.made_s, "torch_compile_s": base_s}
            first = False
        rows.add(**about, setting=f"ours {share:.0%}", load=machine_load(), **row)
    for title, make in wanted.items():
        try:
            peer = make()
            peak, off = peer.peak_bytes(), worst(peer.gradients(), expected)
        except Exception as error:  # a setting that breaks is a row, not the end of the run
            text = " ".join(str(error).split())[:160]
            reason = f"{type(error).__name__}: {text}"
            rows.add(**about, setting=title, status="fails", reason=reason)
            continue
        row, step = ours.at(peak)
        steps = {"base": base, "peer": peer} | ({"ours": step} if step is not None else {})
        times = timed(steps, args.rounds)
        found = {"status": "ok", "peak_bytes": peak, "over_compile": ratio(times, "peer", "base")}
        found["gradients"] = off
        if step is not None:
            row["over_compile"] = ratio(times, "ours", "base")
            row["over_peer"] = ratio(times, "ours", "peer")
        rows.add(**about, setting=title, load=machine_load(), **found, ours=row)
        del peer, step, steps
        gc.collect()


def medians(rows: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """Our share of a setting's time, for each model and setting: the median of its runs."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        found.setdefault((row["model"], row["setting"]), []).append(row["ours"]["over_peer"])
    return {key: statistics.median(shares) for key, shares in found.items()}


def in_the_middle(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the runs of one setting, that with the median of our share of its time."""
    both = [row for row in rows if "over_peer" in row.get("ours", {})]
    both.sort(key=lambda row: row["ours"]["over_peer"])
    return both[(len(both) - 1) // 2] if both else rows[0]


def report(rows: list[dict[str, Any]]) -> str:
    """The table, with what it says of the claims."""
    own = [row for row in rows if row["setting"].startswith("ours")]
    fit = [row for row in own if "peak_bytes" in row]
    within = sum(row["peak_bytes"] <= row["budget_bytes"] for row in fit)
    runs = [row for row in rows if row.get("status") == "ok"]
    both_runs = [row for row in runs if "over_peer" in row["ours"]]
    held = sum(row["ours"]["peak_bytes"] <= row["peak_bytes"] for row in both_runs)
    theirs = {(row["model"], row["setting"]) for row in runs}
    both = medians(both_runs)
    better = [share for share in both.values() if share > 1.0]
    lines = [
        "# Compiled steps",
        "",
        "Made by `python benchmarks/compiled.py`: see there for what is measured and how. Peaks",
        "with what is resident; times over plain `torch.compile`, processor time on one thread.",
        "Gradients of a setting are compared with those of plain `torch.compile` from the same",
        "seed: where a model draws random numbers, *other* ones may be right for other numbers.",
        "",
        f"- Measured peak at most the budget in {within + held} of {len(fit) + len(both_runs)}; "
        f"{len(own) - len(fit)} budgets are refused.",
        f"- Of {len(theirs)} settings of torch.compile, ours has no plan at the peak of "
        f"{len(theirs - both.keys())}; "
        f"at the same peak it takes longer than {len(better)} of the other {len(both)}"
        + (
            f": median {statistics.median(both.values()):.3f} of their time,"
            f" at most {max(both.values()):.3f}"
            + (
                f" (in one run {max(r['ours']['over_peer'] for r in both_runs):.3f})."
                if len(both_runs) > len(both)
                else "."
            )
            if both
            else "."
        ),
        "",
    ]
    loads = [row["load"] for row in rows if "load" in row]
    if loads:
        text = f"- The machine's load was {min(loads):.0f} to {max(loads):.0f} meanwhile."
        lines[-1:] = [text, ""]
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == model]
        by_run = [
            [r["peak_bytes"] for r in fit if r in mine and r.get("run", 0) == run]
            for run in {r.get("run", 0) for r in mine}
        ]
        monotone = all(a >= b for peaks in by_run for a, b in pairwise(peaks))
        quick = ", small" if mine[0]["quick"] else ""
        if "memory" not in mine[0]:
            quick += ", freed memory returned to the system as the C library likes"
        lines += [f"## {TITLES.get(model, model)}{quick}", ""]
        made = next((row for row in mine if "made_s" in row), None)
        if made:
            lines += [
                f"Capture, compilation and first plan {made['made_s']:.0f} s of this process, "
                f"torch.compile's own first step {made['torch_compile_s']:.0f} s; what the C++ "
                f"compiler takes is beside both. Peaks of ours fall with the budget: "
                f"{'yes' if monotone else 'no'}.",
                "",
            ]
        exact = [row for row in mine if "from_float64" in row]
        if exact:
            ours, theirs_off = (
                max(row[key] for row in exact) for key in ("from_float64", "compile_from_float64")
            )
            lines += [
                f"Gradients differ from the eager step's in float64 by {ours:.0e} (ours) and "
                f"{theirs_off:.0e} (torch.compile) of their largest entry.",
                "",
            ]
        lines += [
            "| ours, of the step's bytes | budget, MB | peak, MB | time | gradients off by |",
            "|---|---:|---:|---:|---:|",
        ]
        for setting in dict.fromkeys(row["setting"] for row in mine if row in own):
            runs = [row for row in mine if row["setting"] == setting]
            share = setting.removeprefix("ours ")
            if any("over_compile" not in row for row in runs):
                proven = all(row.get("proven") for row in runs if "over_compile" not in row)
                text = "no schedule fits, which is proven" if proven else "none found"
                lines.append(f"| {share} | {text} | | | |")
                continue
            times = [row["over_compile"] for row in runs]
            text = f"{statistics.median(times):.2f}"
            if len(runs) > 1:
                text += f" ({min(times):.2f} to {max(times):.2f} in {len(runs)} runs)"
            lines.append(
                f"| {share} | {runs[0]['budget_bytes'] / 1e6:.2f} | "
                f"{max(row['peak_bytes'] for row in runs) / 1e6:.2f} | {text} | "
                f"{max(row['gradients'] for row in runs):.0e} |"
            )
        lines += [
            "",
            "| torch.compile | its peak, MB | its time | its gradients | our peak, MB | our time | "
            "ours / its |",
            "|---|---:|---:|---:|---:|---:|---:|",
        ]
        for setting in dict.fromkeys(row["setting"] for row in mine if row not in own):
            row = in_the_middle([row for row in mine if row["setting"] == setting])
            if row.get("status") != "ok":
                lines.append(f"| {row['setting']} | fails: {row['reason'][:80]} | | | | | |")
                continue
            text = (
                f"| {row['setting']} | {row['peak_bytes'] / 1e6:.2f} | {row['over_compile']:.2f} |"
            )
            off = "**wrong**" if exact else "other"  # random numbers may be others
            text += f" {off} |" if row.get("gradients", 0.0) > 1e-3 else " right |"
            our = row["ours"]
            if "over_peer" in our:
                text += f" {our['peak_bytes'] / 1e6:.2f} | {our['over_compile']:.2f} |"
                text += f" {our['over_peer']:.3f} |"
            else:
                text += " infeasible | | |"
            lines.append(text)
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Measure, then write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--quick", action="store_true", help="small models, fewer settings")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--runs", type=int, default=1, help="of the five budgets")
    parser.add_argument("--setting-runs", type=int, default=1, help="of those of torch.compile")
    parser.add_argument("--ours", action="store_true", help="no settings of torch.compile")
    parser.add_argument("--results", type=Path, default=RESULTS / "compiled.jsonl")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    args = parser.parse_args()
    if not args.report and any(os.environ.get(k) != v for k, v in KEEP_MEMORY.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP_MEMORY})
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    rows = Rows(args.results)
    if not args.report:
        for name in args.models.split(","):
            for run in range(args.runs):
                measure(name, rows, args, run)
    args.results.with_suffix(".md").write_text(report(rows.rows) + "\n")


if __name__ == "__main__":
    main()
