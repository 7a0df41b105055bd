"""What a user would pick instead, and schedsim, measured alike: peak bytes and time of a step.

    python benchmarks/peers.py                      # all models and methods, some 25 minutes
    python benchmarks/peers.py --quick              # small models, some minutes
    python benchmarks/peers.py --models gpt2,unet --methods "checkpoint,compile"
    python benchmarks/peers.py --report             # table and figure of what is measured already

Needs the extra `torch`; the peers ckptplan, PuLP and pwlf (for torch.distributed._tools) and
transformers are used where they are installed, and said to be missing where not. Rows go to a file
as they are made, and what is in it whole is not measured again. Peaks are by the CPU allocator's
own record, operations are counted, times (processor time on one thread) are medians of ratios
within a round of interleaved steps: the model, the peer, and schedsim at the peer's measured peak.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
MODELS = ("gpt2", "llama", "vit", "resnet", "unet", "hf-gpt2")
SHARES = (0.9, 0.7, 0.5, 0.4, 0.3, 0.2)
BUDGETS = {
    "dp": (1.0, 0.7, 0.5, 0.3, 0.1, 0.0),
    "greedy": (0.7, 0.3, 0.1),
    "ilp": (0.7, 0.3, 0.1),
}


def methods(name: str, *, quick: bool) -> Iterator[tuple[str, str, Callable[[Any], Any]]]:
    """Title, setting and maker of every peer for the model called `name`."""
    from peer_methods import compiled, eager, planned

    yield "checkpoint per block", "", eager.per_block
    yield "checkpoint per block", "reentrant", partial(eager.per_block, reentrant=True)
    for segments in (2, 4):
        title = f"{segments} segments"
        yield "checkpoint_sequential", title, partial(eager.sequential, segments=segments)
    yield "selective checkpoint", "keeps heavy ops", partial(eager.selective, every=1)
    yield "selective checkpoint", "every second", partial(eager.selective, every=2)
    if name == "hf-gpt2":
        yield "gradient_checkpointing_enable", "", eager.own_checkpointing
        return  # the others as for the GPT-2 above
    for solver, budgets in BUDGETS.items():
        for budget in budgets:
            make = partial(compiled.compiled, budget=budget, solver=solver)
            yield "activation_memory_budget", f"{solver} {budget:g}", make
    yield "ckptplan", "as it is", partial(planned.as_they_come, tool="ckptplan")
    for saving in (0.3, 0.7):
        yield "ckptplan", f"bytes given, {saving:g}", partial(planned.ckptplan, saving=saving)
    yield "torch SAC ILP", "as it is", partial(planned.as_they_come, tool="sac_ilp")
    for share in (0.7, 0.4):
        make = partial(planned.sac_ilp, share=share, quick=quick)
        yield "torch SAC ILP", f"times given, {share:g}", make


class Rows:
    """The results file: one row per model, method and setting, written as they are made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_text() if path.exists() else ""
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]

    @staticmethod
    def key(row: dict[str, Any]) -> tuple[str, str, str]:
        """The fields that tell one measurement from all others."""
        return row["model"], row["method"], row["setting"]

    def has(self, *key: str) -> bool:
        """Whether that is measured already, the times of both plans included."""
        return any(self.key(row) == key and is_whole(row) for row in self.rows)

    def add(self, row: dict[str, Any]) -> None:
        """Keep `row`, in place of an older one."""
        self.rows = [old for old in self.rows if self.key(old) != self.key(row)] + [row]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=self.path.parent, delete=False) as file:
            file.writelines(json.dumps(one) + "\n" for one in self.rows)
        os.chmod(file.name, 0o644)
        os.replace(file.name, self.path)


def is_whole(row: dict[str, Any]) -> bool:
    """Whether the plan for the fewest operations was timed, where there is one."""
    fewest = row.get("by_operations", {})
    return "extra_flops" not in fewest or "over_plain" in fewest


def measure(args: argparse.Namespace) -> None:
    """Measure what is asked for and not in the file."""
    import torch
    from peer_methods.measure import Bench
    from peer_methods.subjects import load_subject

    torch.set_num_threads(args.threads)
    warnings.filterwarnings("ignore")
    rows = Rows(args.results)
    wanted = [text.strip() for text in args.methods.split(",") if text.strip()]
    deadline = time.monotonic() + 60 * args.minutes
    for name in args.models.split(","):
        todo = [
            (method, setting, make)
            for method, setting, make in methods(name, quick=args.quick)
            if not rows.has(name, method, setting)
            and (not wanted or any(text in method for text in wanted))
        ]
        sweep = [
            f"{share:.0%}"
            for share in SHARES
            if not rows.has(name, "schedsim", f"{share:.0%}")
            and (not wanted or any(text in "schedsim" for text in wanted))
        ]
        if not todo and not sweep:
            continue
        try:
            subject = load_subject(name, quick=args.quick)
        except ImportError as error:
            print(f"{name}: {error}")
            continue
        bench = Bench(subject, rounds=args.rounds, time_limit_s=args.time_limit)
        plain = bench.measure(bench.plain)
        common = {"model": name, "resident_bytes": bench.resident_bytes}
        rows.add({**common, "method": "plain", "setting": "", **plain, **about(args)})
        for method, setting, make in todo:
            if time.monotonic() > deadline:
                return
            found = one_peer(bench, make)
            rows.add({**common, "method": method, "setting": setting, **found})
            show(rows.rows[-1])
        held = plain["peak_bytes"] - bench.resident_bytes
        for setting in sweep:
            if time.monotonic() > deadline:
                return
            budget = bench.resident_bytes + int(held * float(setting[:-1]) / 100)
            found = one_budget(bench, budget)
            rows.add({**common, "method": "schedsim", "setting": setting, **found})
            show(rows.rows[-1])


def about(args: argparse.Namespace) -> dict[str, Any]:
    """The machine, the versions and the day of the measurements."""
    import torch
    from schedsim.validation.costs.measured import environment

    found = environment(torch.device("cpu"))
    return {**found, "rounds": args.rounds, "quick": args.quick, "day": time.strftime("%Y-%m-%d")}


def one_peer(bench: Any, make: Callable[[Any], Any]) -> dict[str, Any]:
    """A peer, and schedsim at its measured peak."""
    from peer_methods.eager import Refused
    from peer_methods.measure import compared, machine_load

    try:
        step = make(bench.subject)
        row = bench.measure(step)
    except Refused as refusal:
        return {"status": "refused", "reason": str(refusal)}
    except Exception as error:  # a method that breaks is a row, not the end of the run
        text = " ".join(str(error).split())[:160]
        return {"status": "fails", "reason": f"{type(error).__name__}: {text}"}
    finally:
        bench.clear()
        gc.collect()
    ours, our_step = bench.ours(row["peak_bytes"])
    fewest, fewest_step = bench.ours(row["peak_bytes"], "operations")
    steps = {"plain": bench.plain, "peer": step}
    if our_step is not None:
        steps["ours"] = our_step
    if fewest_step is not None:
        steps["fewest"] = fewest_step
    times = bench.times(steps)
    row |= {"status": "ok", "load": machine_load(), "over_plain": compared(times, "peer", "plain")}
    if our_step is not None:
        ours["over_plain"] = compared(times, "ours", "plain")
        ours["over_peer"] = compared(times, "ours", "peer")
    if fewest_step is not None:
        fewest["over_plain"] = compared(times, "fewest", "plain")
        fewest["over_peer"] = compared(times, "fewest", "peer")
    return {**row, "ours": ours, "by_operations": fewest}


def one_budget(bench: Any, budget_bytes: int) -> dict[str, Any]:
    """Schedsim alone at a budget."""
    from peer_methods.measure import compared, machine_load

    row, step = bench.ours(budget_bytes)
    if step is None:
        return row
    fewest, fewest_step = bench.ours(budget_bytes, "operations")
    steps = {"plain": bench.plain, "ours": step}
    if fewest_step is not None:
        steps["fewest"] = fewest_step
    times = bench.times(steps)
    if fewest_step is not None:
        fewest["over_plain"] = compared(times, "fewest", "plain")
    row |= {"by_operations": fewest}
    return {**row, "load": machine_load(), "over_plain": compared(times, "ours", "plain")}


def show(row: dict[str, Any]) -> None:
    """One line of progress."""
    line = f"{row['model']:8} {row['method']:28} {row['setting']:18} "
    if "over_plain" not in row:
        print(line + row["status"] + " " + row.get("reason", "")[:70], flush=True)
        return
    line += f"{row['peak_bytes'] / 2**20:7.1f} MiB {row['extra_flops']:+6.1%} "
    line += f"{row['over_plain']['median']:.2f}"
    ours = row.get("ours") or {}
    if "over_peer" in ours:
        line += f" | ours {ours['peak_bytes'] / 2**20:7.1f} MiB {ours['extra_flops']:+6.1%} "
        line += f"{ours['over_plain']['median']:.2f}, {ours['over_peer']['median']:.3f} of its"
    elif ours:
        line += f" | ours {ours['status']}"
    fewest = row.get("by_operations", {})
    if "extra_flops" in fewest:
        line += f" | by operations {fewest['extra_flops']:+.1%}"
    if "over_peer" in fewest:
        line += f" {fewest['over_peer']['median']:.3f} of its"
    print(line, flush=True)


def main() -> None:
    """Measure, then write table and figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--methods", default="", help="parts of their names; all by default")
    parser.add_argument("--quick", action="store_true", help="small models, few rounds")
    parser.add_argument("--rounds", type=int, default=None, help="of interleaved steps")
    parser.add_argument("--time-limit", type=float, default=2.0, help="seconds for each plan")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no row after so many")
    parser.add_argument("--results", type=Path, default=None)
    parser.add_argument("--report", action="store_true", help="measure nothing")
    args = parser.parse_args()
    args.rounds = args.rounds or (3 if args.quick else 4)
    args.results = args.results or RESULTS / ("peers-quick.jsonl" if args.quick else "peers.jsonl")
    if not args.report:
        measure(args)
    from peer_methods.page import write_figure, write_table

    rows = Rows(args.results).rows
    write_table(rows, args.results.with_suffix(".md"))
    write_figure(rows, args.results.with_suffix(".svg"))


if __name__ == "__main__":
    main()
