"""Is the measured peak within the budget, whatever the budget from the store-all peak down?

    python benchmarks/bench_budgets.py [--models gpt2,llama,vit,resnet,unet] [--quick]

Budgets go down in steps of a tenth of the store-all peak until none fits, then comes the least that
the refusal names. Peaks are by the CPU allocator's own record; gradients are compared to the plain
model's, bit by bit. Needs the extra `torch`.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
MODELS = ("gpt2", "llama", "vit", "resnet", "unet")
MIB = 2**20


def rows_of(name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row per budget."""
    from functools import partial

    from peer_methods.measure import Bench
    from peer_methods.subjects import load_subject

    from schedsim import InfeasibleBudgetError

    bench = Bench(load_subject(name, quick=args.quick), rounds=1, time_limit_s=args.time_limit)
    rows: list[dict[str, Any]] = []

    def ask(budget_bytes: int) -> InfeasibleBudgetError | None:
        try:
            planned = bench.planned(budget_bytes)
        except InfeasibleBudgetError as refused:
            return refused
        step = partial(planned.module, *bench.subject.inputs)
        peak_bytes = bench.peak_bytes(step)
        row = {
            "model": name,
            "budget_bytes": budget_bytes,
            "share": budget_bytes / most,
            "predicted_bytes": planned.plan.peak_bytes,
            "peak_bytes": peak_bytes,
            "fits": peak_bytes <= budget_bytes,
            "gradients": bench.difference(step),
            "overhead": planned.plan.overhead,
            "gap": planned.plan.gap,
        }
        rows.append(row)
        print(
            f"{name:8} {row['share']:6.1%} {budget_bytes / MIB:8.2f} MiB, "
            f"predicted {row['predicted_bytes'] / MIB:8.2f}, measured {peak_bytes / MIB:8.2f}, "
            f"{'fits' if row['fits'] else 'OVER'}, gradients {row['gradients']}, "
            f"time {row['overhead']:+.1%}",
            flush=True,
        )
        return None

    most = 2**50
    most = bench.planned(most).plan.peak_bytes
    for tenths in range(10, 0, -1):
        refused = ask(most * tenths // 10)
        if refused is not None:
            if refused.plan is not None and refused.plan.min_feasible_bytes:
                ask(refused.plan.min_feasible_bytes)
            break
    return rows


def main() -> None:
    """All models, into one file."""
    import torch

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--quick", action="store_true", help="small models")
    parser.add_argument("--time-limit", type=float, default=1.5, help="seconds for each plan")
    parser.add_argument("--results", type=Path, default=RESULTS / "budgets.jsonl")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    rows = [row for name in args.models.split(",") for row in rows_of(name, args)]
    args.results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    good = sum(row["fits"] and row["gradients"] == "bitwise" for row in rows)
    print(f"{good} of {len(rows)} budgets held, with gradients to the bit")


if __name__ == "__main__":
    main()
