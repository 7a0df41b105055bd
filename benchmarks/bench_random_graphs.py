"""`auto` beside every graph planner on ten random training steps of kinds that no one tuned on.

    python benchmarks/bench_random_graphs.py --results FILE [--time-limit 10] [--only PART]
    python benchmarks/bench_random_graphs.py --results FILE --table FILE

Butterflies, grids, pyramids with skips, networks by preferential attachment, and windows of random
skips; times and sizes are log-normal, `random.seed(16)` chooses them and the budgets, shares of the
store-all peak. A line of the results is a graph and a planner; a line that is there is not run
again. Every schedule is replayed. Wall seconds and processor seconds stand side by side: on a busy
machine a limit of seconds is little work.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

from bench_graph_families import FirstPlan

from schedsim import Graph, Op, Schedule, simulate
from schedsim.api import try_plan
from schedsim.errors import SchedsimError
from schedsim.plans import progress

# A forward op: its name, the ops whose outputs it reads, the bytes of its own, its seconds.
Forward = tuple[str, tuple[str, ...], int, float]

ANYTIME = ("auto", "local_search", "cuts", "moccasin")
PLANNERS: dict[str, dict[str, Any]] = {
    "auto": {},
    "local_search": {"seed": 7},
    "cuts": {},
    "moccasin": {},
    "dtr": {},
    "chen_articulation": {"candidates": "all"},
    "kusumoto": {"family": "approximate", "objective": "time"},
    "saved_bytes": {},
}


def step_of(name: str, forward: list[Forward]) -> Graph:
    """The training step: every forward op has a backward op, twice as long, in reverse."""
    sizes = {op: size for op, _, size, _ in forward}
    readers: dict[str, list[str]] = {}
    ops = []
    for op, reads, size, time_s in forward:
        inputs = tuple(f"{source}.out" for source in reads)
        ops.append(Op(op, time_s=time_s, reads=inputs, writes={f"{op}.out": size}))
        for source in reads:
            readers.setdefault(source, []).append(op)
    for op, reads, _, time_s in reversed(forward):
        read = [f"{source}.out" for source in reads] + [f"{op}.out"]
        read += [f"{reader}>{op}" for reader in readers.get(op, [])]
        gradients = {f"{op}>{source}": sizes[source] for source in reads}
        both = tuple(dict.fromkeys(read))
        ops.append(Op(f"back {op}", "backward", time_s=2 * time_s, reads=both, writes=gradients))
    return Graph(name, tuple(ops))


class Kinds:
    """Random forward parts of some kinds."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def op(self, name: str, reads: tuple[str, ...], extra_bytes: int = 0) -> Forward:
        """An op of random size and time."""
        size = extra_bytes + int(self.rng.lognormvariate(10, 1.2))
        return name, reads, size, self.rng.lognormvariate(0, 1)

    def butterfly(self, width: int, depth: int) -> list[Forward]:
        """Every op reads two of the layer before: its own place and the one a power of 2 away."""
        found = [self.op(f"in{j}", ()) for j in range(width)]
        before = [op[0] for op in found]
        for layer in range(depth):
            away = 1 << (layer % max(1, width.bit_length() - 1))
            now = [self.op(f"{layer}_{j}", (before[j], before[j ^ away])) for j in range(width)]
            found += now
            before = [op[0] for op in now]
        return [*found, ("end", tuple(before), 8, 1.0)]

    def grid(self, height: int, width: int) -> list[Forward]:
        """Every op reads the one above and the one to the left."""
        found = []
        for i in range(height):
            for j in range(width):
                reads = (f"{i - 1}_{j}",) * (i > 0) + (f"{i}_{j - 1}",) * (j > 0)
                found.append(self.op(f"{i}_{j}", reads))
        return found

    def pyramid(self, depth: int) -> list[Forward]:
        """A way down, and a way up again with a skip at every step."""
        found, last = [], ""
        for d in range(depth):
            found.append(self.op(f"down{d}", (last,) * (d > 0), 2**20 // 2 ** (d % 8)))
            last = f"down{d}"
        for d in reversed(range(depth)):
            reads = tuple(dict.fromkeys((last, f"down{d}")))
            found.append(self.op(f"up{d}", reads, 2**19 // 2 ** (d % 8)))
            last = f"up{d}"
        return found

    def attached(self, count: int, most: int) -> list[Forward]:
        """Ops read what is read often already."""
        found = [self.op("n0", ())]
        pool = ["n0"]
        for i in range(1, count):
            reads = tuple(dict.fromkeys(self.rng.choice(pool) for _ in range(most)))
            if i % 3 == 0:
                reads = tuple(dict.fromkeys((*reads, f"n{i - 1}")))
            found.append(self.op(f"n{i}", reads))
            pool += [f"n{i}", *reads]
        return self.ended(found)

    def window(self, count: int, width: int) -> list[Forward]:
        """Ops read some of the last few."""
        found = []
        for i in range(count):
            near = range(max(0, i - 2 * width), i)
            some = self.rng.sample(near, min(i, self.rng.randint(1, width)))
            found.append(self.op(f"n{i}", tuple(f"n{j}" for j in sorted(some))))
        return self.ended(found)

    def ended(self, forward: list[Forward]) -> list[Forward]:
        """With a last op that reads all that nobody else does."""
        read = {source for _, reads, _, _ in forward for source in reads}
        return [*forward, ("end", tuple(op[0] for op in forward if op[0] not in read), 8, 1.0)]


def cases() -> list[tuple[Graph, float]]:
    """Ten steps and the shares of their store-all peaks."""
    rng = random.Random(16)
    kinds = Kinds(rng)
    forwards = [
        ("butterfly 16", kinds.butterfly(16, 8)),
        ("butterfly 64", kinds.butterfly(64, 12)),
        ("grid 12 x 12", kinds.grid(12, 12)),
        ("grid 5 x 60", kinds.grid(5, 60)),
        ("pyramid 40", kinds.pyramid(40)),
        ("pyramid 200", kinds.pyramid(200)),
        ("attached 300", kinds.attached(300, 2)),
        ("attached 800", kinds.attached(800, 3)),
        ("window 150", kinds.window(150, 3)),
        ("window 600", kinds.window(600, 8)),
    ]
    return [(step_of(*one), rng.choice((0.8, 0.7, 0.6, 0.5))) for one in forwards]


class FirstPlanByWall(FirstPlan):
    """When the first plan was there, by the wall."""

    clock = staticmethod(time.perf_counter)


def run(graph: Graph, share: float, planner: str, limit_s: float) -> dict[str, Any]:
    """A line of the results."""
    budget_bytes = int(share * simulate(graph, Schedule.store_all(graph)).peak_bytes)
    options = dict(PLANNERS[planner])
    if planner in ANYTIME:
        options["time_limit_s"] = limit_s
    line: dict[str, Any] = {"graph": graph.name, "ops": graph.num_ops, "budget": share}
    line |= {"planner": planner, "time_limit_s": options.get("time_limit_s")}
    FirstPlan.first_s = None
    cpu_s, begun_s = time.process_time(), time.perf_counter()
    try:
        with progress.searching(planner):
            plan = try_plan(graph, budget_bytes, planner, **options)
    except SchedsimError as error:
        return line | {"refused": str(error)}
    line |= {"s": time.perf_counter() - begun_s, "cpu_s": time.process_time() - cpu_s}
    if plan.schedule is not None:
        assert simulate(graph, plan.schedule).peak_bytes <= budget_bytes
    first_s = None if FirstPlan.first_s is None else FirstPlan.first_s - begun_s
    return line | {
        "overhead": plan.overhead,
        "bound": plan.lower_bound_s / plan.store_all_s - 1,
        "infeasible": plan.proven_infeasible,
        "first_s": first_s,
    }


def read(results: Path) -> list[dict[str, Any]]:
    """The lines of the results file."""
    text = results.read_text() if results.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def table(lines: list[dict[str, Any]]) -> str:
    """A row a graph, as Markdown."""
    head = ["graph", "ops", "budget", *PLANNERS, "bound", "first plan s", "auto s", "of these CPU"]
    text = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for name in dict.fromkeys(line["graph"] for line in lines):
        mine = {line["planner"]: line for line in lines if line["graph"] == name}
        auto = mine["auto"]
        cells = [name, str(auto["ops"]), f"{auto['budget']:.0%}".replace("%", " %")]
        for planner in PLANNERS:
            overhead = mine.get(planner, {}).get("overhead")
            cells.append("-" if overhead is None else f"{100 * overhead:.3f}")
        bound = max(line.get("bound", 0.0) for line in mine.values())
        never = any(line.get("infeasible") for line in mine.values())
        cells.append("none fits" if never else f"{100 * bound:.3f}")
        cells.append("-" if auto["first_s"] is None else f"{auto['first_s']:.2f}")
        cells += [f"{auto['s']:.1f}", f"{auto['cpu_s']:.1f}"]
        text.append("| " + " | ".join(cells) + " |")
    return "\n".join(text) + "\n"


def main() -> None:
    """Measure, or write the table of what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    if args.table is not None:
        args.table.write_text(table(read(args.results)))
        return
    progress.Progress = FirstPlanByWall  # type: ignore[misc]  # the planners report to this one
    small = cases()[4]
    for planner in PLANNERS:  # kernels are compiled outside of the times
        run(*small, planner, 0.5)
    done = {(line["graph"], line["planner"]) for line in read(args.results)}
    for graph, share in cases():
        for planner in PLANNERS:
            if args.only not in graph.name or (graph.name, planner) in done:
                continue
            line = run(graph, share, planner, args.time_limit)
            with args.results.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print({k: v for k, v in line.items() if k != "time_limit_s"}, flush=True)


if __name__ == "__main__":
    main()
