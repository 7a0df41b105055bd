"""Events per second of the engine, and of the same model in SimPy, interleaved in one process.

A training step on eight devices: layers spread over them, messages between them, and each
activation copied to the host and back. An event is the start or the end of a run. Needs simpy (the
``dev`` extra).

python benchmarks/bench_engine.py [--layers 50000] [--simpy-layers 4000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

from schedsim import Graph, Op, Schedule, simulate

NUM_DEVICES = 8


def pipeline_graph(num_layers: int, seed: int = 0) -> tuple[Graph, Schedule]:
    """Layers in contiguous parts, each part on a device, with a schedule that offloads it all."""
    rng = np.random.default_rng(seed)
    times = rng.uniform(1e-4, 1e-3, num_layers)
    sizes = rng.integers(1, 10**7, num_layers + 1).tolist()
    ops, names = [], []
    device = [i * NUM_DEVICES // num_layers for i in range(num_layers)]

    def add(name: str, stream: str, time_s: float, reads: Any, writes: dict[str, int], **more: Any):
        ops.append(
            Op(name, time_s=time_s, reads=tuple(reads), writes=writes, stream=stream, **more)
        )
        names.append(name)

    current = None
    for i in range(num_layers):
        home = device[i]
        if i and device[i - 1] != home:
            moved = {f"m{i}": sizes[i]}
            pools = {f"m{i}": f"device:{home}"}
            link = f"link:{device[i - 1]}-{home}"
            add(f"S{i}", link, sizes[i] / 5e10, [current], moved, pools=pools)
            current = f"m{i}"
        add(f"F{i}", f"compute:{home}", times[i], [current] if current else [], {f"x{i}": sizes[i]})
        current = f"x{i}"
        add(
            f"O{i}", f"d2h:{home}", sizes[i] / 2.5e10, [current], {f"h{i}": sizes[i]},
            pools={f"h{i}": "host"},
        )  # fmt: skip
    previous = None
    for i in reversed(range(num_layers)):
        home = device[i]
        add(
            f"P{i}", f"h2d:{home}", sizes[i] / 2.5e10, [f"h{i}"], {f"y{i}": sizes[i]},
            pools={f"y{i}": f"device:{home}"},
        )  # fmt: skip
        if i + 1 < num_layers and device[i + 1] != home:
            moved, pools = {f"e{i}": sizes[i]}, {f"e{i}": f"device:{home}"}
            add(
                f"R{i}",
                f"link:{device[i + 1]}-{home}",
                sizes[i] / 5e10,
                [previous],
                moved,
                pools=pools,
            )
            previous = f"e{i}"
        reads = [f"y{i}", *([previous] if previous else [])]
        add(f"B{i}", f"compute:{home}", 2 * times[i], reads, {f"d{i}": sizes[i]})
        previous = f"d{i}"
    graph = Graph("pipeline", tuple(ops))
    return graph, Schedule.from_names(names)


def simulate_with_simpy(graph: Graph, schedule: Schedule) -> tuple[float, dict[str, int]]:
    """Makespan and peaks of the same model: a process per stream, an event per run."""
    import simpy

    environment = simpy.Environment()
    ops = [graph.ops[i] for i in schedule.bind(graph).tolist()]
    done = [environment.event() for _ in ops]
    latest: dict[str, int] = {}
    needs, uses = [], []
    for k, op in enumerate(ops):
        needs.append([latest[tensor] for tensor in op.reads])
        uses.append(1)
        for writer in needs[k]:
            uses[writer] += 1
        latest.update(dict.fromkeys(op.writes, k))
    lines: dict[str, list[int]] = {}
    for k, op in enumerate(ops):
        lines.setdefault(op.stream, []).append(k)
    used: dict[str, int] = dict.fromkeys(graph.arrays.pool_names, 0)
    peak = dict(used)

    def give_back(writer: int) -> None:
        uses[writer] -= 1
        if uses[writer] == 0:
            for tensor, size in ops[writer].writes.items():
                used[ops[writer].pool_of(tensor)] -= size

    def work(line: list[int]) -> Any:
        for k in line:
            for writer in needs[k]:
                if not done[writer].processed:
                    yield done[writer]
            op = ops[k]
            for tensor, size in op.writes.items():
                pool = op.pool_of(tensor)
                used[pool] += size
                peak[pool] = max(peak[pool], used[pool])
            yield environment.timeout(op.time_s)
            done[k].succeed()
            for writer in (*needs[k], k):
                give_back(writer)

    for line in lines.values():
        environment.process(work(line))
    environment.run()
    return environment.now, peak


def main() -> None:
    """Time both, round by round, and print medians and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=50_000)
    parser.add_argument("--simpy-layers", type=int, default=4_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    started = time.perf_counter()
    small, order = pipeline_graph(options.simpy_layers)
    simulate(small, order)
    print(f"building {len(order)} runs, compiling or loading the kernels   "
          f"{time.perf_counter() - started:.2f} s")  # fmt: skip
    large, long_order = pipeline_graph(options.layers)
    _ = large.arrays, large.store_all_s, small.store_all_s
    rates: dict[str, list[float]] = {"engine": [], "engine, small": [], "simpy, small": []}
    for _round in range(options.rounds):
        for name, graph, schedule in (
            ("engine", large, long_order),
            ("engine, small", small, order),
            ("simpy, small", small, order),
        ):
            begun = time.perf_counter()
            if name.startswith("simpy"):
                makespan_s, _ = simulate_with_simpy(graph, schedule)
            else:
                makespan_s = simulate(graph, schedule).makespan_s
            rates[name].append(2 * len(schedule) / (time.perf_counter() - begun))
            assert abs(makespan_s / simulate(graph, schedule).makespan_s - 1) < 1e-9
    for name, found in rates.items():
        runs = len(long_order if name == "engine" else order)
        print(f"{name:<14} {2 * runs:>8} events   {statistics.median(found):>12,.0f} events/s")
    ratios = [a / b for a, b in zip(rates["engine, small"], rates["simpy, small"], strict=True)]
    print(
        f"engine over SimPy, same model: {statistics.median(ratios):.1f} times (median of rounds)"
    )


if __name__ == "__main__":
    main()
