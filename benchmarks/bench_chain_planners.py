"""Times of the chain planners beside peers and a plain reference, in one run.

    python benchmarks/bench_chain_planners.py [--repeats 3] [--skip-slow]

Peers (`pyrevolve`, `checkpoint_schedules`) are timed where they are installed. Compilation is timed
apart: every kernel is called once on a tiny chain first.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from schedsim.algorithms.chains.frontier import exact_frontier, frontier
from schedsim.algorithms.chains.persistent import Problem
from schedsim.algorithms.chains.revolve import revolve_schedule
from schedsim.algorithms.chains.rotor import rotor

from schedsim import Chain, Schedule, simulate


def heterogeneous(num_stages: int, seed: int = 0) -> Chain:
    """All stages differ; sizes without a common unit, as in a measured network."""
    rng = np.random.default_rng(seed)
    output = rng.integers(10**6, 10**8, num_stages)
    return Chain.from_arrays(
        "heterogeneous",
        10**7,
        forward_s=rng.uniform(0.001, 0.02, num_stages),
        backward_s=rng.uniform(0.002, 0.04, num_stages),
        output_bytes=output,
        saved_bytes=output + rng.integers(10**6, 4 * 10**8, num_stages),
        forward_workspace_bytes=rng.integers(0, 10**8, num_stages),
        backward_workspace_bytes=rng.integers(0, 10**8, num_stages),
    )


def transformer(num_stages: int) -> Chain:
    """Alternating attention and MLP blocks: batch 1, sequence 2048, width 4096, 32 heads, fp16."""
    sbh, scores = 2048 * 4096, 2 * 32 * 2048 * 2048
    pairs = -(-num_stages // 2)

    def alternating(attention: Any, mlp: Any) -> list[Any]:
        return ([attention, mlp] * pairs)[:num_stages]

    return Chain.from_arrays(
        "transformer",
        2 * sbh,
        forward_s=alternating(0.0113, 0.0131),
        backward_s=alternating(0.0234, 0.0277),
        output_bytes=[2 * sbh] * num_stages,
        saved_bytes=alternating(13 * sbh + scores * 5 // 2, 21 * sbh),
        forward_workspace_bytes=alternating(scores, 4 * sbh),
        backward_workspace_bytes=alternating(2 * scores, 8 * sbh),
    )


def middle_budget(chain: Chain, fraction: float) -> int:
    """The budget at `fraction` of the way from the least feasible to the store-all peak."""
    least = Problem(chain).min_feasible_bytes
    most = simulate(chain, Schedule.store_all(chain)).peak_bytes
    return int(least + fraction * (most - least))


@njit(cache=True)
def textbook(f: Any, b: Any, x: Any, saved: Any, fws: Any, bws: Any, num_slots: int) -> Any:
    """The recurrence as the paper prints it: every (i, k, m, j), choices stored; sizes in slots."""
    num = f.size
    cost = np.full((num, num + 1, num_slots + 1), np.inf)
    choice = np.full((num, num + 1, num_slots + 1), -1, np.int16)
    for n in range(1, num + 1):
        for i in range(num - n + 1):
            k = i + n
            gradient = x[k] if k < num else 0
            back = saved[i] + x[i + 1] + (x[i] if i else 0) + bws[i]
            need = max(saved[i] + fws[i] + gradient, back)
            if n == 1 and k == num:
                need = max(need, saved[i] + x[num])
            for m in range(need, num_slots + 1):
                if n == 1:
                    cost[i, k, m] = f[i] + b[i]
                elif m >= saved[i]:
                    cost[i, k, m] = f[i] + b[i] + cost[i + 1, k, m - saved[i]]
                    choice[i, k, m] = i
            peak, replay = 0, 0.0
            for j in range(i + 1, k):
                peak = max(peak, (x[j - 1] if j - 1 > i else 0) + x[j] + fws[j - 1])
                replay += f[j - 1]
                for m in range(max(peak + gradient, x[j]), num_slots + 1):
                    value = replay + cost[j, k, m - x[j]] + cost[i, j, m]
                    if value < cost[i, k, m]:
                        cost[i, k, m] = value
                        choice[i, k, m] = j
    return cost[0, num, num_slots], choice[0, num, num_slots]


def textbook_time(chain: Chain, budget_bytes: int, num_slots: int) -> float:
    """Run `textbook` on sizes rounded up to slots, workspaces too."""
    problem = Problem(chain)
    inside = budget_bytes - problem.outside_bytes
    unit = -(-inside // num_slots)

    def slots(sizes: Any) -> Any:
        return (sizes + unit - 1) // unit

    cost, _ = textbook(
        problem.forward_s,
        problem.own_s - problem.forward_s,  # without variants, a way a stage
        slots(problem.x),
        slots(problem.saved),
        slots(problem.forward_ws),
        slots(problem.backward_ws),
        inside // unit,
    )
    return float(cost)


def timed(call: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Median seconds of `call`, and its last result."""
    times, result = [], None
    for _ in range(repeats):
        started = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - started)
    return statistics.median(times), result


def row(label: str, seconds: float, note: str = "") -> None:
    """Print one line of the table."""
    print(f"{label:<58}{seconds:>10.3f} s   {note}", flush=True)


def peak_rss_mib() -> int:
    """Largest resident size of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def warm_up() -> float:
    """Compile or load every kernel; seconds taken."""
    started = time.perf_counter()
    tiny = heterogeneous(6)
    budget = middle_budget(tiny, 0.5)
    frontier(tiny, budget)
    rotor(tiny, budget, num_slots=20)
    textbook_time(tiny, budget, 20)
    return time.perf_counter() - started


def bench_rotor(repeats: int, *, slow: bool) -> None:
    """339 different stages and 500 slots; 1000 stages of two kinds."""
    chain = heterogeneous(339)
    for fraction in (0.1, 0.3, 0.6):
        budget = middle_budget(chain, fraction)
        problem = Problem(chain)
        unit = -(-(budget - problem.outside_bytes) // 500)
        seconds, table = timed(
            lambda: problem.solve_slots(budget, unit, round_up=True),  # noqa: B023
            repeats,
        )
        overhead = problem.time_s(table, budget) / chain.store_all_s - 1
        note = f"{overhead:+.2%}, table {table.values.nbytes / 2**20:.0f} MiB"
        row(f"rotor, 339 different stages, 500 slots, budget {fraction:.0%}", seconds, note)
        del table
    print(f"{'':<58}peak resident {peak_rss_mib()} MiB")
    if slow:
        seconds, makespan = timed(lambda: textbook_time(chain, budget, 500), 1)
        overhead = makespan / chain.store_all_s - 1
        row("  textbook recurrence, compiled, same chain and budget", seconds, f"{overhead:+.2%}")
    chain = transformer(1000)
    budget = middle_budget(chain, 0.3)
    problem_s, problem = timed(lambda: Problem(chain), repeats)
    unit = -(-(budget - problem.outside_bytes) // 500)
    seconds, _ = timed(lambda: problem.solve_slots(budget, unit, round_up=True), repeats)
    row("rotor, 1000 stages of two alternating blocks, 500 slots", problem_s + seconds)


def bench_frontier(repeats: int) -> None:
    """The exact curve."""
    for num in (100, 339):
        chain = transformer(num)
        seconds, curve = timed(lambda: exact_frontier(chain), repeats)  # noqa: B023
        note = f"{curve.budget_bytes.size} break points"
        row(f"exact frontier, {num} transformer stages", seconds, note)


def bench_revolve(repeats: int, *, slow: bool) -> None:
    """n = 10,000, s = 100, the schedule fully listed as op names."""
    seconds, schedule = timed(lambda: revolve_schedule(10_000, 100), repeats)
    row("revolve, n = 10,000, s = 100, as indices", seconds, f"{len(schedule)} runs")
    seconds, _ = timed(lambda: revolve_schedule(10_000, 100).names, repeats)
    row("revolve, n = 10,000, s = 100, as op names", seconds)
    if importlib.util.find_spec("pyrevolve"):
        row("  pyrevolve " + importlib.metadata.version("pyrevolve"), timed(_pyrevolve, repeats)[0])
    if slow and importlib.util.find_spec("checkpoint_schedules"):
        version = importlib.metadata.version("checkpoint_schedules")
        row(f"  checkpoint_schedules {version}", timed(_checkpoint_schedules, 1)[0])


def _pyrevolve() -> int:
    from pyrevolve import crevolve

    runner = crevolve.CRevolve(100, 10_000, None)
    actions = 0
    while True:
        action = runner.revolve()
        actions += 1
        if action == crevolve.Action.terminate:
            return actions


def _checkpoint_schedules() -> int:
    from checkpoint_schedules import EndReverse, MultistageCheckpointSchedule

    actions = 0
    for action in MultistageCheckpointSchedule(10_000, 100, 0):
        actions += 1
        if isinstance(action, EndReverse):
            break
    return actions


def main() -> None:
    """Run all benchmarks and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--skip-slow", action="store_true", help="leave out references over 10 s")
    options = parser.parse_args()
    row("compiling, or loading what is cached", warm_up(), "not counted below")
    bench_rotor(options.repeats, slow=not options.skip_slow)
    bench_frontier(options.repeats)
    bench_revolve(options.repeats, slow=not options.skip_slow)


if __name__ == "__main__":
    main()
