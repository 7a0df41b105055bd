"""Offloading beside recomputing, against recomputing alone, at a fraction of store-all memory.

    python benchmarks/bench_offload.py                              # prints a table
    python benchmarks/bench_offload.py --results benchmarks/results/offload.jsonl
    python benchmarks/bench_offload.py CHAIN.json --rate 2          # a chain of your own
    python benchmarks/bench_offload.py --bounds-of benchmarks/results/offload.jsonl

Needs nothing but schedsim. Chains of ResNets and transformers are rooflines of an A100 at half of
its peaks, about what such models reach in practice, with PCIe 4.0 and 10 us of latency a copy. A
chain from a file gets a link that carries `--rate` times its activations during its forward pass.

The claims looked at are those of Beaumont, Eyraud-Dubois & Shilova (POFO, NeurIPS 2021) for
convolutional chains: offloading lowers the overhead of recomputing alone by a third, and both
together save a factor of 4 to 6 in activation memory at under 20 % overhead. Recomputing alone is
the optimal persistent schedule (`frontier`). Every plan is replayed by the engine. With
--bounds-of nothing is planned: today's bounds of single cuts stand beside the file's.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from schedsim.algorithms.offload._bound import copy_bound
from schedsim.algorithms.offload._linked_graph import link_graph

import schedsim
from schedsim import Chain, Schedule, simulate
from schedsim.api import try_plan
from schedsim.plans.effort import Effort
from schedsim.plans.links import Link
from schedsim.plans.offloading import Offloading
from schedsim.workloads import WorkloadOptions, build_workload

MODELS: tuple[dict[str, Any], ...] = (
    {"preset": "resnet-101", "batch": 64},
    {"preset": "resnet-152", "batch": 64},
    {"preset": "gpt2-xl", "batch": 8},
    {"layers": 96},
)
FACTORS = (2, 3, 4, 5, 6)


def measure(
    chain: Chain, link: Offloading, factor: float, time_limit_s: float, seed: int
) -> dict[str, Any]:
    """One row: the store-all peak divided by `factor`, with copies and without."""
    everything = simulate(chain, Schedule.store_all(chain))
    budget = int(everything.peak_bytes / factor)
    alone = try_plan(chain, budget, "frontier")
    begun = time.perf_counter()
    both = try_plan(
        chain,
        budget,
        "offload",
        link=(link.d2h, link.h2d),
        host_bytes=link.host_bytes,
        time_limit_s=time_limit_s,
        seed=seed,
    )
    took_s = time.perf_counter() - begun
    row: dict[str, Any] = {
        "workload": chain.name,
        "num_stages": chain.num_stages,
        "link_gb_per_s": round(link.d2h.bytes_per_s / 1e9, 3),
        "store_all_bytes": everything.peak_bytes,
        "factor": factor,
        "budget_bytes": budget,
        "recompute_overhead": alone.overhead,
        "overhead": both.overhead,
        "status": both.status,
        "bound_overhead": both.lower_bound_s / chain.store_all_s - 1,
        "planning_s": round(took_s, 2),
    }
    if both.feasible:
        told = both.simulate(chain)
        assert told.peak_bytes <= budget
        row["num_recomputed"], row["num_copies"] = told.num_recomputed, told.num_copies
        row["exposed_s"] = told.makespan_s - told.busy_s["compute"]
        row["host_bytes"] = told.peak_by_pool.get("host", 0)
        row["link_busy"] = {
            name: round(busy / told.makespan_s, 4)
            for name, busy in told.busy_s.items()
            if name != "compute"
        }
    return row


def bounds_of(results: Path, work: list[tuple[Chain, Offloading]], effort: float) -> None:
    """Print today's bound beside every row of `results`, and the gaps to its plan."""
    rows = {(r["workload"], r["factor"]): r for r in map(json.loads, results.open())}
    print("| chain | less memory | plan, % | bound then, % | now, % | gap then, % | now, % |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for chain, link in work:
        for factor in FACTORS:
            row = rows[chain.name, factor]
            linked = link_graph(chain.graph, row["budget_bytes"], link)
            found = copy_bound(chain.graph, linked, row["budget_bytes"], effort=Effort(effort))
            then = row["bound_overhead"]
            now = max(then, found.bound_s / chain.store_all_s - 1)
            step = 1 + row["overhead"]
            cells = (row["overhead"], then, now, step / (1 + then) - 1, step / (1 + now) - 1)
            shown = " | ".join(f"{abs(round(100 * cell, 3)):.3f}" for cell in cells)
            print(f"| {chain.name} | {factor:g} | {shown} |", flush=True)


def text_of(row: dict[str, Any]) -> str:
    """A row of the table."""

    def percent(value: float | None) -> str:
        return "-" if value is None else f"{abs(round(100 * value, 2)):.2f}"

    alone, both = row["recompute_overhead"], row["overhead"]
    ratio = "-" if not alone or both is None else f"{abs(both / alone):.2f}"
    return (
        f"| {row['workload']} | {row['num_stages']} | {row['link_gb_per_s']:g} | {row['factor']:g} "
        f"| {percent(alone)} | {percent(both)} | {ratio} | {percent(row['bound_overhead'])} "
        f"| {row['planning_s']:.1f} |"
    )


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("chains", nargs="*", help="chain files; the models above by default")
    parser.add_argument("--rate", type=float, default=1.0, help="of a chain file's link")
    parser.add_argument("--link", default="pcie4", help="of the models")
    parser.add_argument("--latency-us", type=float, default=10.0)
    parser.add_argument("--efficiency", type=float, default=0.5, help="share of the peaks reached")
    parser.add_argument("--time-limit", type=float, default=6.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bounds-of", type=Path, help="a file of results, whose bounds to compare")
    parser.add_argument("--effort", type=float, default=4.0, help="of the bounds")
    parser.add_argument("--results", type=Path, help="write the rows to this file, one a line")
    args = parser.parse_args()

    work: list[tuple[Chain, Offloading]] = []
    for name in args.chains:
        chain = schedsim.load(name)
        assert isinstance(chain, Chain), f"{name} is no chain"
        saved = sum(stage.saved_bytes for stage in chain.stages)
        rate = args.rate * saved / sum(stage.forward_s for stage in chain.stages)
        work.append((chain, Offloading(Link(rate), Link(rate))))
    for model in () if args.chains else MODELS:
        options = WorkloadOptions(**model, efficiency=args.efficiency)
        chain = build_workload(options).workload
        link = Offloading.over(args.link, latency_s=args.latency_us * 1e-6)
        work.append((chain, link))
    if args.bounds_of:
        bounds_of(args.bounds_of, work, args.effort)
        return
    # Kernels are compiled, or loaded, before anything is timed.
    tiny = Chain.from_arrays(
        "tiny", 1, forward_s=[1] * 4, backward_s=[1] * 4, output_bytes=[1] * 4, saved_bytes=[1] * 4
    )
    try_plan(tiny, 5, "offload", link=Link(0.1), max_moves=100)

    print(
        "| chain | stages | GB/s | less memory | recompute alone, % | with offload, % | ratio "
        "| bound, % | planned, s |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    rows = []
    for chain, link in work:
        for factor in FACTORS:
            row = measure(chain, link, factor, args.time_limit, args.seed)
            rows.append(row)
            print(text_of(row), flush=True)
    if args.results:
        args.results.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
