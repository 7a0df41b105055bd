"""Time and memory of one large simulation: a million op runs on a graph of ten thousand ops.

python benchmarks/bench_simulator.py [--runs 1000000] [--ops 10000]
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from schedsim import Graph, Op, Schedule, simulate


def layered_graph(num_ops: int, seed: int = 0) -> Graph:
    """Ops that each read three of the sixty-four before them."""
    rng = np.random.default_rng(seed)
    ops = []
    for i in range(num_ops):
        few = min(i, 3)
        reads = rng.choice(np.arange(max(0, i - 64), i), few, replace=False) if few else []
        ops.append(
            Op(
                name=f"op{i}",
                phase="forward" if 2 * i < num_ops else "backward",
                time_s=1.0,
                workspace_bytes=int(rng.integers(0, 1000)),
                reads=tuple(f"t{k}" for k in reads),
                writes={f"t{i}": int(rng.integers(1, 10**9))},
            )
        )
    return Graph("layered", tuple(ops))


def main() -> None:
    """Build, warm up on a small graph, simulate once and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--ops", type=int, default=10_000)
    options = parser.parse_args()
    small = layered_graph(10)
    started = time.perf_counter()
    simulate(small, Schedule.store_all(small))
    print(f"compiling, or loading what is cached   {time.perf_counter() - started:8.3f} s")
    started = time.perf_counter()
    graph = layered_graph(options.ops)
    print(f"building {options.ops} ops                     {time.perf_counter() - started:8.3f} s")
    rng = np.random.default_rng(1)
    repeats = np.sort(rng.integers(0, options.ops, options.runs - options.ops))
    # Every op once in order, with windows of recomputation in between.
    runs = np.sort(np.concatenate([np.arange(options.ops), repeats]), kind="stable")
    schedule = Schedule(graph.op_names, runs)
    started = time.perf_counter()
    simulation = simulate(graph, schedule)
    seconds = time.perf_counter() - started
    print(f"simulating {options.runs} runs             {seconds:8.3f} s")
    started = time.perf_counter()
    categories = simulation.by_category()
    print(f"attributing the peak                   {time.perf_counter() - started:8.3f} s")
    print(f"peak {simulation.peak_bytes} bytes, of which {categories}")
    print(f"peak resident {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")


if __name__ == "__main__":
    main()
