"""Time that rematerialize takes before the first step, by phase, and time of a step at 100 %.

    OMP_NUM_THREADS=1 python benchmarks/bench_rematerialize.py [LAYERS ...] [--steps]

A GPT-2 of so many layers, small in all else (15 layers are about 500 ops, 155 about 5,000),
within 70 % of its store-all peak, on the CPU. Kernels of the planner are compiled before. Figures
are seconds of processor time of all threads, so that other programs on the machine hardly matter.
With ``--steps``, steps at 100 %, where nothing is recomputed, alternate with plain ones, and the
median of their ratios is printed, for GPT-2, Llama and ResNet-50, each by ops, by blocks (if it has
a line of them) and in place.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

MODEL = "model:gpt2,layers={},hidden=64,heads=4,vocab=256,seq=64,batch=8,dropout=0.0"
FULL = (
    "model:gpt2,layers=4,hidden=256,heads=4,vocab=1000,seq=128,batch=8,dropout=0.0",
    "model:llama2-7b,layers=4,hidden=256,heads=4,ffn=688,vocab=1000,seq=128,batch=8",
    "model:resnet50,batch=4,image=96",
)
WAYS = ("op", "block", "in place")
PHASES = {
    "record_step": "record",
    "capture": "trace",
    "measured_costs": "costs",
    "try_plan": "plan",
    "compare": "check",
}
ROUNDS, WARM = 21, 4


def timed(spent: dict[str, float], phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose processor time is added to `phase`."""

    def run(*arguments: Any, **keywords: Any) -> Any:
        started = time.process_time()
        try:
            return function(*arguments, **keywords)
        finally:
            spent[phase] += time.process_time() - started

    return run


def phases(num_layers: int) -> None:
    """Print a row for a model of `num_layers`."""
    from schedsim.validation.targets import load_target
    from schedsim.validation.whole_step import plan_maker, step_capture, step_planning

    import schedsim

    target = load_target(MODEL.format(num_layers), "cpu")
    spent: dict[str, float] = defaultdict(float)
    honest = []
    for name, phase in PHASES.items():
        for module in (step_capture, step_planning, plan_maker):
            if hasattr(module, name):
                honest.append((module, name, getattr(module, name)))
                setattr(module, name, timed(spent, phase, getattr(module, name)))
    started = time.process_time()
    try:
        module = schedsim.rematerialize(
            target.model, _given(target), "70%", target.loss, level="op"
        )
    finally:
        for place, name, function in honest:
            setattr(place, name, function)
    whole = time.process_time() - started
    began = time.process_time()
    module(*_inputs(target), **target.keywords).backward()
    spent["replay"] = time.process_time() - began
    rest = whole - sum(spent[phase] for phase in PHASES.values())
    shown = "  ".join(f"{phase} {spent[phase]:.2f}" for phase in [*PHASES.values(), "replay"])
    runs, ops = len(module.plan.schedule), len(module.run_counts)
    print(f"{ops} ops, {runs} runs: {whole:.2f} s  ({shown}  rest {rest:.2f})", flush=True)


def _given(target: Any) -> Any:
    return dict(target.keywords) if target.keywords else tuple(target.inputs)


def _inputs(target: Any) -> tuple[Any, ...]:
    return () if target.keywords else tuple(target.inputs)


def steps(name: str, way: str) -> None:
    """Print the ratio of a step at 100 % to a plain one, for the model `name` run the given way."""
    from schedsim.validation.targets import load_target

    import schedsim

    target, twin = load_target(name, "cpu"), load_target(name, "cpu")
    inner = way == "in place"
    given, level = _given(target), "auto" if inner else way
    loss = None if inner else target.loss
    model_inputs = tuple(twin.inputs)[: 1 if target.loss is not None else None]
    if inner:
        given = model_inputs if not target.keywords else given
    try:
        module = schedsim.rematerialize(
            target.model, given, "100%", loss, in_place=inner, **({} if inner else {"level": level})
        )
    except schedsim.SchedsimError as error:
        print(f"{name}, {way}: {error.message}")
        return

    def plain(model: Any) -> Any:
        if target.loss is None:
            out = model(*target.inputs, **target.keywords)
            return getattr(out, "loss", out)
        return target.loss(model(*model_inputs), *target.inputs[1:])

    def scheduled() -> Any:
        return plain(target.model) if inner else module(*_inputs(target), **target.keywords)

    def seconds(step: Callable[[], Any], model: Any) -> float:
        model.zero_grad()
        started = time.process_time()
        step().backward()
        return time.process_time() - started

    for _ in range(WARM):  # in place, the first steps measure and plan
        seconds(scheduled, target.model)
    ratios = []
    for _ in range(ROUNDS):
        mine = seconds(scheduled, target.model)
        ratios.append(mine / seconds(lambda: plain(twin.model), twin.model))
    print(f"{name}, {way}: at 100 %, {statistics.median(ratios):.3f} x plain", flush=True)


def main() -> None:
    """Print a row for each number of layers."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("layers", type=int, nargs="*")
    parser.add_argument("--steps", action="store_true", help="steps at 100 % instead")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.steps:
        for name in FULL:
            for way in WAYS:
                steps(name, way)
        return
    phases(3)  # what is compiled and imported once
    for num_layers in arguments.layers or [15]:
        phases(num_layers)


if __name__ == "__main__":
    main()
