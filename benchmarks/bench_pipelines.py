"""Pipelines: what planning per stage gains over one recomputation for all, and how long it takes.

    python benchmarks/bench_pipelines.py

Needs nothing but schedsim, and about a minute on one core. Step times are simulated, with roofline
times of an A100 80 GB; seconds of planning are measured, and noisy on a busy machine.
"""

from __future__ import annotations

import time

from schedsim.algorithms.pipelines.fixed_recomputation import fixed_recomputation
from schedsim.algorithms.pipelines.plan_pipeline import plan_pipeline

from schedsim.dataflow.chain import Chain
from schedsim.pipelines import RECOMPUTE, make_pipeline
from schedsim.pipelines.from_formula import layer_state_bytes
from schedsim.pipelines.orders import make_order
from schedsim.pipelines.sequence import timed_schedule
from schedsim.simulation.simulator import simulate
from schedsim.workloads import WorkloadOptions, build_workload

# Name, options, devices, micro-batches, budget in GB a device.
CASES = (
    ("gpt3-175b", {"preset": "gpt3-175b", "tensor_parallel": 8}, 8, 64, 80),
    ("gpt3-175b", {"preset": "gpt3-175b", "tensor_parallel": 8}, 16, 64, 40),
    ("llama2-70b", {"preset": "llama2-70b", "tensor_parallel": 8, "batch": 2}, 4, 32, 64),
    ("llama2-70b", {"preset": "llama2-70b", "tensor_parallel": 8, "batch": 2}, 8, 32, 40),
)


def main() -> None:
    """Print a line a case, then the speed of lowering and simulating."""
    print("step time in s (seconds to plan); - where a device does not fit\n")
    head = (
        "model",
        "devices",
        "budget",
        "keep all",
        "layers",
        "stage",
        "planned",
        "gap, %",
        "and cut",
        "gap, %",
    )
    print("  ".join(f"{word:>14}" for word in head))
    for name, options, devices, micro, budget_gb in CASES:
        given = WorkloadOptions(static="auto", **options)
        chain = build_workload(given).workload
        assert isinstance(chain, Chain)
        pipeline = make_pipeline(chain, devices, micro, layer_static_bytes=layer_state_bytes(given))
        budget = budget_gb * 10**9
        cells = [name, str(devices), f"{budget_gb} GB"]
        for way in RECOMPUTE:
            fixed = fixed_recomputation(pipeline, budget, recompute=way)
            cells.append(f"{fixed.makespan_s:.3f}" if fixed.feasible else "-")
        for partition in ("given", "auto"):
            plan = plan_pipeline(pipeline, budget, partition=partition)
            shown = f"{plan.makespan_s:.3f}" if plan.feasible else "-"
            gap = "-" if plan.gap is None else f"{100 * plan.gap:.2f}"
            cells += [f"{shown} ({plan.planning_s:.1f})", gap]
        print("  ".join(f"{cell:>14}" for cell in cells), flush=True)
    _speed(pipeline)


def _speed(pipeline) -> None:  # type: ignore[no-untyped-def]
    """Runs a second of the sequence and of the engine, on the last case."""
    order = make_order("1f1b", pipeline.num_devices, pipeline.num_micro_batches)
    plans = [RECOMPUTE["layers"](len(pipeline.stage_layers(v))) for v in range(pipeline.num_stages)]
    started = time.perf_counter()
    timed = timed_schedule(pipeline, order, plans)
    listed = time.perf_counter()
    simulate(pipeline.graph, timed.schedule)
    ended = time.perf_counter()
    num = len(timed.schedule)
    print(f"\n{num} runs: listed at {num / (listed - started):,.0f} a second,", end=" ")
    print(f"simulated at {num / (ended - listed):,.0f} a second")


if __name__ == "__main__":
    main()
