"""Seconds to plan a large model: the first budget, a second one, and the whole curve.

    python benchmarks/bench_hierarchical.py [--layers 48] [--results FILE.jsonl] [--curve-points 20]

A GPT-2 of 48 layers (GPT-2 XL, batch 8 of 1024 tokens; nothing is allocated) is captured: some
5,300 nodes as traced, 4,017 calls, of which 1,652 are ops with storage of their own and the rest
views. Needs the extra `torch`. Times of ops are a roofline of an A100. Planning is bounded by the
time allowed; the result to look at is how far from the proven bound the plan is by then.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any


def captured_graph(layers: int) -> tuple[Any, int, float]:
    """The training step, its number of traced calls, and the seconds of its capture."""
    from schedsim.validation.capture import capture
    from schedsim.validation.costs import roofline_costs
    from schedsim.validation.models import build_model

    built = build_model("gpt2-xl", device="meta", layers=layers, batch=8, seq=1024)
    started = time.perf_counter()
    captured = capture(built.model, built.inputs, built.loss, kernels="cuda")
    captured = captured.with_costs(roofline_costs(captured, "a100-80gb"))
    return captured.graph, len(captured.program.calls), time.perf_counter() - started


def timed(function: Any) -> tuple[Any, dict[str, float]]:
    """The result, with its seconds by the clock and of the processor."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = function()
    return result, {
        "seconds": round(time.perf_counter() - wall, 2),
        "processor_s": round(time.process_time() - cpu, 2),
    }


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows: capture, plans, curve."""
    import schedsim
    from schedsim import Chain, Schedule, simulate

    # Kernels are compiled or loaded once: that is not planning.
    units: dict[str, Any] = dict.fromkeys(
        ("forward_s", "backward_s", "output_bytes", "saved_bytes"), [1] * 12
    )
    schedsim.plan(Chain.from_arrays("warm", 1, **units).graph, 9, "hierarchical", time_limit_s=0.2)
    graph, num_calls, capture_s = captured_graph(args.layers)
    full = simulate(graph, Schedule.store_all(graph))
    held = full.peak_bytes - graph.static_bytes
    rows: list[dict[str, Any]] = [
        {
            "what": "capture",
            "seconds": round(capture_s, 2),
            "ops": graph.num_ops,
            "calls": num_calls,
            "store_all_gb": round(full.peak_bytes / 1e9, 2),
        }
    ]
    for what, share, limit_s in (("first plan", 0.5, args.first_s), ("second", 0.3, args.second_s)):
        budget = graph.static_bytes + int(share * held)
        plan, taken = timed(
            lambda budget=budget, limit_s=limit_s: schedsim.plan(
                graph, budget, time_limit_s=limit_s
            )
        )
        rows.append(
            {
                "what": f"{what}, {share:.0%} of activations",
                **taken,
                "planner": plan.found_by,
                "overhead": plan.overhead,
                "gap": plan.gap,
            }
        )
    curve, taken = timed(
        lambda: schedsim.pareto(
            graph, time_limit_s=args.curve_s, num_points=args.curve_points, seed=1
        )
    )
    points = [
        {
            "share": round((point.budget_bytes - graph.static_bytes) / held, 4),
            "overhead": round(point.overhead, 5),
            "gap": round(point.makespan_s / point.lower_bound_s - 1, 5),
        }
        for point in curve.points
    ]
    rows.append({"what": f"curve of {len(points)} points", **taken, "points": points})
    about = {"load": round(os.getloadavg()[0], 1), "cores": os.cpu_count()}
    return [{**row, **about} for row in rows]


def main() -> None:
    """Print a line a row, and keep them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--first-s", type=float, default=15.0, help="allowed for the first plan")
    parser.add_argument("--second-s", type=float, default=2.5, help="allowed for the second")
    parser.add_argument("--curve-s", type=float, default=45.0, help="allowed for the curve")
    parser.add_argument("--curve-points", type=int, default=20)
    parser.add_argument("--results", type=Path)
    args = parser.parse_args()
    rows = measure(args)
    for row in rows:
        shown = {key: value for key, value in row.items() if key not in ("what", "points")}
        print(f"{row['what']:32} " + "  ".join(f"{key} {value}" for key, value in shown.items()))
        for point in row.get("points", []):
            print(f"    {point['share']:7.1%}  {point['overhead']:+8.2%}  gap {point['gap']:.2%}")
    if args.results:
        args.results.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
