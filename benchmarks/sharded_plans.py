"""Plans of sharded Llama 3, made by schedsim and run by PyTorch on the dry CUDA device.

    python benchmarks/sharded_plans.py --python ENV/bin/python      # writes the table
    python benchmarks/sharded_plans.py --check                      # predicts again, runs nothing

ENV holds torch's CUDA build (docs/dry-cuda.md). For each cluster, torchtitan's selective and full
recomputation are run first (``sharded_llama.py``, one rank of a fake process group); what they
are predicted to reserve is the budget of a plan each, which is run too. Plans keep one per cent of
a budget free, as predictions may be off by that. Where that leaves no plan, they keep every tensor
in half as many layers as are predicted to fit, or in a quarter. A row has what is predicted, what
PyTorch's allocator reserved, and the floating-point operations of the step.
A step that was run before, with the same words, is not run again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import schedsim
from schedsim.clusters import least_recomputation, predict
from schedsim.clusters.kept_names import by_layers, keeping, kept_names

HERE = Path(__file__).resolve().parent
ROWS = HERE / "results" / "sharded-plans.jsonl"
PAGE = HERE / "results" / "sharded-plans.md"
_RUN = ("-m", "schedsim.validation.dry_cuda", "--device", "h100-80gb", "--memory", "4000GB", "--")


@dataclass(frozen=True)
class Case:
    """A sharded step."""

    model: str
    fsdp: int
    tensor: int
    batch: int
    seq: int = 8192

    def options(self) -> dict[str, Any]:
        """As `schedsim.cluster` takes them."""
        return {
            "fsdp": self.fsdp,
            "tensor": self.tensor,
            "batch": self.batch,
            "seq": self.seq,
            "device": "h100-96gb",
        }


CASES = (
    Case("8b", 8, 1, 2),
    Case("8b", 32, 1, 2),
    Case("8b", 128, 1, 2),
    Case("70b", 32, 8, 4),
)
BASELINES = ("selective", "full")
NAMES = {"8b": "Llama 3 8B", "70b": "Llama 3 70B"}


def predicted(case: Case, recompute: str) -> int:
    """Bytes that are predicted to be reserved."""
    step = schedsim.cluster(f"llama3-{case.model}", recompute=recompute, **case.options())
    return step.reserved_bytes


MARGIN = 0.99


def planned(case: Case, budget_bytes: int) -> str:
    """The recomputation chosen within a budget."""
    step = schedsim.cluster(f"llama3-{case.model}", recompute="full", **case.options())
    within = int(MARGIN * budget_bytes)
    tight = step.reserved_bytes > within
    if tight:
        within = budget_bytes
    chosen = least_recomputation(step.model, step.degrees, step.training, step.fabric, within)
    halve = tight
    while halve:
        halves = in_half_the_layers(chosen.policies(step.model.num_layers))
        chosen = replace(chosen, recompute=halves)
        # Fewer tensors may leave larger gaps between them.
        halve = predict(step.model, step.degrees, chosen, step.fabric).reserved_bytes > within
    return chosen.recompute


def in_half_the_layers(policies: list[str]) -> str:
    """Each op whose output is kept, in the last half of the layers where it is."""
    kept = [kept_names(policy) or frozenset() for policy in policies]
    counts = Counter(name for names in kept for name in sorted(names))
    num_layers = len(policies)
    return by_layers(
        [
            keeping(name for name, count in counts.items() if layer >= num_layers - count // 2)
            for layer in range(num_layers)
        ]
    )


def run(case: Case, recompute: str, python: str, before: list[dict[str, Any]]) -> dict[str, Any]:
    """PyTorch's record of three steps; for a row that was run before, the record of then."""
    for row in before:
        if CASES.index(case) == _number(row) and row["recompute"] == recompute:
            return {name: value for name, value in row.items() if name not in _BESIDE}
    words = [f"--{name}={getattr(case, name)}" for name in ("model", "fsdp", "tensor", "batch")]
    words += [f"--seq={case.seq}", f"--recompute={recompute}"]
    command = [python, *_RUN, "python", str(HERE / "sharded_llama.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


_BESIDE = ("made_by", "beside", "predicted_bytes")


def measure(case: Case, python: str, before: list[dict[str, Any]]) -> None:
    """Append the rows of one cluster."""
    for baseline in BASELINES:
        theirs = run(case, baseline, python, before)
        budget = predicted(case, baseline)
        plan = planned(case, budget)
        ours = run(case, plan, python, before)
        for row, made_by, expected in (
            (theirs, "torchtitan", budget),
            (ours, "schedsim", predicted(case, plan)),
        ):
            beside = {"made_by": made_by, "beside": baseline, "predicted_bytes": expected}
            with ROWS.open("a") as file:
                file.write(json.dumps(row | beside) + "\n")


def page(rows: list[dict[str, Any]]) -> str:
    """The table, in Markdown."""
    lines = [
        "# Plans of sharded Llama 3, run on the dry CUDA device",
        "",
        "PyTorch's own FSDP2, tensor parallelism, checkpointing and CUDA allocator, one rank of a",
        "fake process group; kernels not run; no times. Written by `benchmarks/sharded_plans.py`.",
        "8,192 tokens a sequence, eager, fp32 shards, bf16 arithmetic, fp32 reduction, AdamW.",
        "A plan's budget is what the step of torchtitan above it was predicted to reserve.",
        "",
        "| model, FSDP x TP, batch | recomputation | predicted | reserved | error | Pflop a step |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        where = f"{NAMES[row['model']]}, {row['fsdp']} x {row['tensor']}, {row['batch']}"
        error = row["predicted_bytes"] / row["reserved_bytes"] - 1
        what = f"torchtitan's {row['beside']}" if row["made_by"] == "torchtitan" else "**plan**"
        lines.append(
            f"| {where} | {what} | {row['predicted_bytes'] / 2**30:.2f} GiB "
            f"| {row['reserved_bytes'] / 2**30:.2f} GiB | {100 * error:+.2f} % "
            f"| {row['flops'] / 1e15:,.4f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run what is asked, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--python", default=sys.executable, help="of an environment with CUDA torch"
    )
    parser.add_argument("--case", type=int, nargs="*", help="only these, by their number from 0")
    parser.add_argument("--check", action="store_true", help="predict the rows again, run nothing")
    given = parser.parse_args()
    if not given.check:
        wanted = range(len(CASES)) if given.case is None else given.case
        before = _rows()
        kept = [row for row in before if _number(row) not in wanted]
        ROWS.write_text("".join(json.dumps(row) + "\n" for row in kept))
        for number in wanted:
            measure(CASES[number], given.python, before)
    rows = sorted(_rows(), key=_number)
    if given.check:
        for row in rows:
            row["predicted_bytes"] = predicted(CASES[_number(row)], row["recompute"])
    text = page(rows)
    if given.check:
        print(text)
    else:
        PAGE.write_text(text)
    return 0


def _rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def _number(row: dict[str, Any]) -> int:
    return CASES.index(Case(row["model"], row["fsdp"], row["tensor"], row["batch"], row["seq"]))


if __name__ == "__main__":
    sys.exit(main())
