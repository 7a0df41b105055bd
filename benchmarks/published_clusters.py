"""The joint search against what was published: is its step ever slower, in the same model?

For each published run of papers/torchtitan, llm-foundry, megatron-lm, megatron-bridge and
cluster-steps, the search gets the devices, the sequences of a step and the settings that it does
not choose; it chooses degrees, micro-batches, order of the pipeline and recomputation. Nothing lies
on the host. Both times are predictions of `schedsim.cluster`: the run's own settings are in the
space, or have a word that the search does not use. The memory is the device's, or what the run's
own prediction reserves where that is more.

Each run is searched in a process of its own, which ends after ``--minutes`` of processor time. Rows
are kept in published-clusters.jsonl as they come; a row is made again where its run, or the step
that was chosen, is predicted with other numbers by now.

    PYTHONPATH=. python benchmarks/published_clusters.py
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

import schedsim
from schedsim.clusters.joint_choice import ClusterChoice, choose
from schedsim.clusters.prediction import ClusterPrediction
from schedsim.workloads.architecture import Architecture

ROOT = Path(__file__).resolve().parents[1]
ROWS = ROOT / "benchmarks/results/published-clusters.jsonl"
PAGE = ROOT / "benchmarks/results/published-clusters.md"
_DEGREES = ("fsdp", "replicate", "tensor", "pipeline", "context", "expert")
_CHOSEN = (
    "batch",
    "num_micro_batches",
    "schedule",
    "num_chunks",
    "recompute",
    "zero_stage",
)
"""Fields of `Training` that the search chooses."""
_MEMORY = {"h100-96gb": 95.0396 * 2**30, "h100-80gb": 80e9, "a100-80gb": 80e9}


def published() -> Iterator[tuple[str, str | Architecture, str, dict[str, Any]]]:
    """(name, model, device, settings) of every published run."""
    titan, steps = _module_of("torchtitan"), _module_of("cluster-steps", "reproduce")
    for group, runs in titan.GROUPS.items():
        for run in runs:
            options = run.options | ({"flash": run.flash} if run.flash != 2 else {})
            yield f"{group}: {run.name}", run.model, run.device, options
    foundry = _module_of("llm-foundry")
    for device, runs in foundry.RUNS.items():
        for run in runs:
            if run.gpus == 8:  # most others differ in this alone
                options = run.options() | {"flash": foundry.FLASH}
                yield f"llm-foundry, {device}: {run.name}", run.architecture(), device, options
    for run in _module_of("megatron-lm").RUNS:
        yield f"Megatron-LM: {run.name}", run.model, "h100-80gb", dict(run.options)
    bridge = _module_of("megatron-bridge")
    alike: list[dict[str, Any]] = []
    for run in bridge.RUNS:
        if run.options not in alike:  # of two containers with the same settings
            alike.append(run.options)
            options = run.options | {"flash": bridge.FLASH}
            yield f"Megatron-Bridge: {run.name}", run.model, "h100-80gb", options
    for name, (preset, pipeline, batch, chunks, *_) in steps.KORTHIKANTI.items():
        order = {"schedule": "interleaved", "num_chunks": chunks} if chunks > 1 else {}
        yield (
            f"Korthikanti et al., {name}",
            preset,
            "a100-80gb",
            {
                "tensor": 8,
                "pipeline": pipeline,
                "seq": 2048,
                "batch": batch,
                "num_micro_batches": 1 if pipeline == 1 else batch,
                "recompute": "core",
                "eager_attention": True,
                "state": "megatron",
                "regather": True,
                "fused_optimizer": True,
                **order,
            },
        )
    for name, (data, context, seq, batch, _) in steps.LLAMA3.items():
        yield (
            f"Llama 3 405B on {name}",
            "llama3-405b",
            "h100-80gb",
            {
                "fsdp": data,
                "context": context,
                "tensor": 8,
                "pipeline": 16,
                "seq": seq,
                "batch": batch,
                "num_micro_batches": batch,
                "schedule": "interleaved",
                "num_chunks": 8,
                "compiled": True,
                "compiled_loss": True,
                "state": "megatron",
                "regather": True,
            },
        )


def _module_of(paper: str, module_name: str = "published_runs") -> ModuleType:
    path = ROOT / "papers" / paper / f"{module_name}.py"
    name = f"papers_{paper.replace('-', '_')}_{module_name}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # for its dataclasses
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class SearchedRun:
    """A published run, and what the search chose in its place.

    Attributes
    ----------
    run, devices
        Its name, and how many devices it has.
    its_s, its_reserved_bytes
        Its own step in this model: seconds, and reserved bytes of the fullest rank.
    effort
        How many candidates the search may simulate.
    chosen_s, lower_bound_s
        Seconds of the chosen step, 0 where the search found none that fits, and the bound of all.
    processor_s
        Processor time of the search.
    chosen
        Degrees, micro-batches and recomputation.
    unfinished
        Whether the search was ended before it had an answer.
    choice
        What was chosen, as options of `schedsim.cluster`; empty where nothing fits.
    chosen_reserved_bytes
        Reserved bytes of the fullest rank of the chosen step.
    """

    run: str
    devices: int
    its_s: float
    its_reserved_bytes: int
    effort: int
    chosen_s: float = 0.0
    lower_bound_s: float = 0.0
    processor_s: float = 0.0
    chosen: str = ""
    unfinished: bool = False
    choice: dict[str, Any] = field(default_factory=dict)
    chosen_reserved_bytes: int = 0


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run that the search does not choose."""
    left = {k: v for k, v in options.items() if k not in (*_DEGREES, *_CHOSEN)}
    if "libraries" in left:  # heads that are gathered whole only take longer
        left["libraries"] = replace(left["libraries"], whole_heads=False)
    return left


def told(recompute: str) -> str:
    """A setting of many pipeline ranks, with how many in turn have the same."""
    runs = [(policy, len(list(group))) for policy, group in groupby(recompute.split("/"))]
    return "/".join(f"{policy} x{count}" if count > 1 else policy for policy, count in runs)


def _searched(
    name: str, model: str | Architecture, device: str, options: dict[str, Any], effort: int
) -> SearchedRun:
    its = schedsim.cluster(model, device=device, **options)
    devices = math.prod(options.get(degree, 1) for degree in _DEGREES if degree != "expert")
    data = options.get("fsdp", 1) * options.get("replicate", 1)
    began = time.process_time()
    found: ClusterChoice = choose(
        model,
        max(int(_MEMORY[device]), its.reserved_bytes),
        devices=devices,
        global_batch=options.get("batch", 1) * data,
        device=device,
        effort=effort,
        offload=False,
        **_given(options),
    )
    took = time.process_time() - began
    own = (name, devices, its.step_s, its.reserved_bytes, effort)
    if found.best is None:
        return SearchedRun(*own, 0.0, found.lower_bound_s, took)
    best = found.best
    words = [
        f"{degree} {getattr(best.degrees, degree)}"
        for degree in _DEGREES
        if getattr(best.degrees, degree) > 1
    ]
    training = best.training
    words += [
        f"{training.num_micro_batches} micro-batches",
        f"recompute {told(training.recompute)}",
    ]
    choice = {degree: getattr(best.degrees, degree) for degree in _DEGREES}
    choice |= {name: getattr(training, name) for name in _CHOSEN}
    return SearchedRun(
        *own,
        best.step_s,
        found.lower_bound_s,
        took,
        ", ".join(words),
        choice=choice,
        chosen_reserved_bytes=best.reserved_bytes,
    )


def _search_apart(queue: Any, minutes: float, *arguments: Any) -> None:
    limit = math.ceil(60 * minutes)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))  # the process is killed then
    queue.put(_searched(*arguments))


def search_in_time(
    name: str,
    model: str | Architecture,
    device: str,
    options: dict[str, Any],
    effort: int,
    minutes: float,
) -> SearchedRun:
    """The search, or a row that says that it was ended."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    arguments = (queue, minutes, name, model, device, options, effort)
    process = context.Process(target=_search_apart, args=arguments)
    process.start()
    while process.is_alive() and queue.empty():
        process.join(0.2)
    if not queue.empty():
        found = queue.get()
        process.join()
        return found
    if process.exitcode != -24:  # SIGXCPU
        raise RuntimeError(f"the search for {name} ended with {process.exitcode}")
    its = schedsim.cluster(model, device=device, **options)
    return SearchedRun(
        name,
        its.degrees.num_devices,
        its.step_s,
        its.reserved_bytes,
        effort,
        processor_s=60 * minutes,
        unfinished=True,
    )


def page(rows: list[SearchedRun], effort: int, minutes: float, missing: Sequence[str] = ()) -> str:
    """The table of all rows; `missing` runs have none yet."""
    lines = [
        "# The joint search against published settings",
        "",
        f"`python benchmarks/published_clusters.py --effort {effort}`, schedsim "
        f"{schedsim.__version__}: times are predictions of one model for both. `processor s` is the"
        " time of the search.",
        "",
        "| run | devices | its step (s) | chosen (s) | chosen/its | gap | processor s | chosen |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        if row.unfinished:
            continue
        less = "" if row.effort == effort else f" (effort {row.effort})"
        start = f"| {row.run}{less} | {row.devices} | {row.its_s:.3f} |"
        if not row.chosen_s:
            lines.append(f"{start} none | | | {row.processor_s:.0f} | |")
            continue
        lines.append(
            f"{start} {row.chosen_s:.3f} | {row.chosen_s / row.its_s:.3f} | "
            f"{1 - row.lower_bound_s / row.chosen_s:.1%} | {row.processor_s:.0f} | {row.chosen} |"
        )
    ended = [row for row in rows if not row.unfinished]
    shares = [row.chosen_s / row.its_s if row.chosen_s else math.inf for row in ended]
    slower = sum(share > 1 + 1e-9 for share in shares)
    lines += ["", f"{len(ended)} runs, {slower} of them faster than what the search chose"]
    if ended:
        lines[-1] += f" (median {statistics.median(shares):.3f} of their time, "
        lines[-1] += f"at most {max(shares):.3f})"
    lines[-1] += "."
    unfinished = [row.run for row in rows if row.unfinished]
    if unfinished:
        lines += ["", f"Not finished in {minutes:g} minutes of processor time:"]
        lines[-1] += f" {'; '.join(unfinished)}."
    if missing:
        lines += ["", f"Not run yet: {'; '.join(missing)}."]
    return "\n".join(lines) + "\n"


def is_current(
    row: SearchedRun,
    model: str | Architecture,
    device: str,
    options: dict[str, Any],
    minutes: float,
) -> bool:
    """Whether the run and the step that was chosen for it are still predicted with these numbers.

    What another search would choose by now, this does not tell.
    """
    if row.unfinished and 60 * minutes > row.processor_s:
        return False
    its = schedsim.cluster(model, device=device, **options)
    if not _alike(its, row.its_s, row.its_reserved_bytes):
        return False
    if not row.chosen_s:
        return True
    if not row.choice:
        return False
    ours = schedsim.cluster(model, device=device, **_given(options), **row.choice)
    return _alike(ours, row.chosen_s, row.chosen_reserved_bytes)


def _alike(found: ClusterPrediction, step_s: float, reserved_bytes: int) -> bool:
    """But for rounding."""
    return math.isclose(found.step_s, step_s, rel_tol=1e-9) and (
        found.reserved_bytes == reserved_bytes
    )


def main() -> None:
    """Search for the runs that have no row, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="a part of a run's name")
    parser.add_argument("--effort", type=int, default=40, help="candidates simulated, at most")
    parser.add_argument("--minutes", type=float, default=10.0, help="processor time of one run")
    given = parser.parse_args()
    known: dict[str, SearchedRun] = {}
    if ROWS.exists():
        for line in ROWS.read_text().splitlines():
            row = SearchedRun(**json.loads(line))
            known[row.run] = row
    every = list(published())
    for name, model, device, options in every:
        row = known.get(name)
        if given.only not in name:
            continue
        if row and is_current(row, model, device, options, given.minutes):
            continue
        known[name] = search_in_time(name, model, device, options, given.effort, given.minutes)
        print(known[name], flush=True)
        rows = [known[one] for one, *_ in every if one in known]
        ROWS.write_text("".join(json.dumps(asdict(one)) + "\n" for one in rows))
        missing = [one for one, *_ in every if one not in known]
        PAGE.write_text(page(rows, given.effort, given.minutes, missing))


if __name__ == "__main__":
    main()
