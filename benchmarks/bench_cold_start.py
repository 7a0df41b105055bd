"""Processor time of the first plans on a machine whose kernels are not compiled yet.

    python benchmarks/bench_cold_start.py

A chain, its graph, and training graphs that are no chains are each planned three times, in
processes of their own: with an empty cache of kernels, with what that process left there, and once
more. Compiling costs the difference between the first and the last. One of the two graphs is solved
by its bound. The other is left to the annealing, and beside it HiGHS takes the seconds that the
effort grants it: these are printed apart, because no faster compilation can save them. A row
follows for each kernel that was compiled: seconds of its own, and seconds with the kernels inside
it. Even processor time differs by a third between a busy machine and a quiet one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

KINDS = ("chain", "graph of a chain", "graph solved by its bound", "graph annealed")


def plan_once(kind: str) -> dict[str, Any]:
    """Plan in this process; its seconds, and those of each kernel."""
    from numba.core import event

    rows: list[tuple[str, float, float]] = []
    inside: list[list[float]] = []

    class Listener(event.Listener):  # type: ignore[misc]
        def on_start(self, _: Any) -> None:
            inside.append([time.process_time(), 0.0])

        def on_end(self, ended: Any) -> None:
            began, of_others = inside.pop()
            whole = time.process_time() - began
            if inside:
                inside[-1][1] += whole
            function = ended.data["dispatcher"].py_func
            rows.append((f"{function.__module__}.{function.__name__}", whole - of_others, whole))

    event.register("numba:compile", Listener())
    import schedsim

    solver_s = count_solver_seconds()

    workload = _workload(kind)
    whole = schedsim.simulate(workload, schedsim.Schedule.store_all(workload)).peak_bytes
    options = {"max_moves": 2000} if kind.startswith("graph") else {}
    plan = schedsim.plan(workload, int(0.5 * whole), **options)
    assert plan.feasible
    return {"seconds": time.process_time(), "solver_s": sum(solver_s), "rows": rows}


def count_solver_seconds() -> list[float]:
    """Wrap scipy's entries to HiGHS; each call adds its processor seconds to the list."""
    from scipy import optimize

    seconds: list[float] = []

    def counted(solve: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            began = time.thread_time()
            try:
                return solve(*arguments, **options)
            finally:
                seconds.append(time.thread_time() - began)

        return call

    optimize.milp, optimize.linprog = counted(optimize.milp), counted(optimize.linprog)
    return seconds


def _workload(kind: str) -> Any:
    from schedsim.workloads.synthetic_graphs import branches

    if kind in KINDS[2:]:
        return branches(200, seed=int(kind == "graph solved by its bound"))
    return _chain() if kind == "chain" else _chain().graph


def _chain() -> Any:
    """24 stages of sizes and times that differ, so that no two parts are alike."""
    import schedsim

    num = range(24)
    return schedsim.Chain.from_arrays(
        "cold",
        1000,
        forward_s=[1.0 + i % 5 for i in num],
        backward_s=[2.0 + i % 7 for i in num],
        output_bytes=[1000 + 10 * (i % 3) for i in num],
        saved_bytes=[4000 + 130 * (i % 11) for i in num],
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--once", choices=KINDS, help="plan in this process, as JSON")
    arguments = parser.parse_args()
    if arguments.once:
        print(json.dumps(plan_once(arguments.once)))
        return
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as cache:
            environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
            command = [sys.executable, __file__, "--once", kind]
            runs = [
                json.loads(subprocess.check_output(command, env=environment, timeout=600))
                for _ in range(3)
            ]
        cold, _, warm = (run["seconds"] for run in runs)
        print(f"first {kind} plan  {cold:.1f} s of processor time, {warm:.1f} s once compiled;")
        print(f"  {runs[0]['solver_s']:.1f} s of the first in the solver, as the effort asks for")
        for name, own, whole in sorted(runs[0]["rows"], key=lambda row: -row[1]):
            if own >= 0.05:
                print(f"  {own:6.2f} s  {whole:6.2f} s  {name}")


if __name__ == "__main__":
    main()
