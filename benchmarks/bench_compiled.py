"""Schedules of ops under inductor: measured peak and time, compiled and not.

    OMP_NUM_THREADS=1 python benchmarks/bench_compiled.py [MODEL]

MODEL is a target of the command line. Takes some minutes, a C++ compiler, and no accelerator. Eager
steps and torch.compile's own stand beside. Peaks are the CPU allocator's record of a step; times
are medians of interleaved steps, as ratios to eager.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

MODEL = "model:gpt2,layers=4,hidden=128,heads=4,vocab=1000,seq=128,batch=8,dropout=0.0"
SHARES = (1.0, 0.7, 0.5)
ROUNDS = 7


def main(text: str) -> None:
    """Print a row per way."""
    import torch
    from schedsim.validation.measure import AllocatorMeter, storage_bytes
    from schedsim.validation.op_level.inductor import compile_schedule
    from schedsim.validation.targets import capture_target, load_target

    import schedsim

    target = load_target(text, "cpu")
    captured: Any = capture_target(target, "op")
    graph, model = captured.graph, target.model
    most = schedsim.simulate(graph, schedsim.Schedule.store_all(graph)).peak_bytes

    def plain() -> Any:
        out = model(*target.inputs, **target.keywords)
        return target.loss(out) if target.loss is not None else out.loss

    steps: dict[str, Any] = {"eager": plain, "torch.compile": torch.compile(plain)}
    planned: dict[str, int] = {}
    for share in SHARES:
        plan = schedsim.plan(graph, int(share * most), time_limit_s=10)
        for how in ("plan", "plan + inductor"):
            module = captured.module(plan.schedule)
            if how != "plan":
                compile_schedule(module)
            name = f"{how}, {share:.0%} of store-all"
            steps[name] = lambda m=module: m(*target.inputs, **target.keywords)
            planned[name] = plan.peak_bytes or 0

    def step(name: str) -> None:
        for parameter in model.parameters():
            parameter.grad = None
        steps[name]().backward()

    resident = storage_bytes([list(model.parameters()), list(model.buffers()), target.inputs])
    if isinstance(target.loss, torch.nn.Module):
        resident += storage_bytes(list(target.loss.buffers()))
    peaks, times = {}, {name: [] for name in steps}
    for name in steps:
        step(name)  # compiles
        model.zero_grad()
        [reading] = AllocatorMeter().read(lambda n=name: step(n))
        peaks[name] = resident + reading.peak_bytes
    for _ in range(ROUNDS):
        for name in steps:
            begun = time.perf_counter()
            step(name)
            times[name].append(time.perf_counter() - begun)
    print(f"{'way':<34}{'planned MB':>11}{'peak MB':>9}{'time':>7}")
    for name in steps:
        ratio = statistics.median(a / b for a, b in zip(times[name], times["eager"], strict=True))
        plan_text = f"{planned[name] / 1e6:.1f}" if name in planned else ""
        print(f"{name:<34}{plan_text:>11}{peaks[name] / 1e6:>9.1f}{ratio:>7.2f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else MODEL)
