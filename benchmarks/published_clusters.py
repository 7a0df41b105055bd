"""The joint search against what was published: is its step ever slower, in the same model?

For each published run of papers/torchtitan and papers/cluster-steps, the search gets the devices,
the sequences of a step and the settings that it does not choose; it chooses degrees, micro-batches,
order of the pipeline and recomputation. Nothing lies on the host. Both times are predictions of
`schedsim.cluster`: the run's own settings are in the space, or have a word that the search does not
use. The memory is the device's, or what the run's own prediction reserves where that is more.

    PYTHONPATH=. python benchmarks/published_clusters.py > benchmarks/results/published-clusters.md
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import schedsim
from schedsim.clusters.joint_choice import ClusterChoice, choose

ROOT = Path(__file__).resolve().parents[1]
_DEGREES = ("fsdp", "replicate", "tensor", "pipeline", "context", "expert")
_CHOSEN = ("batch", "num_micro_batches", "schedule", "num_chunks", "recompute", "regather")
_MEMORY = {"h100-96gb": 95.0396 * 2**30, "h100-80gb": 80e9, "a100-80gb": 80e9}


def published() -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """(name, model, device, settings) of every published run."""
    titan, steps = _claims_of("torchtitan"), _claims_of("cluster-steps")
    for group, runs in titan.GROUPS.items():
        for run in runs:
            yield f"{group}: {run.name}", run.model, "h100-96gb", dict(run.options)
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


def _claims_of(paper: str) -> ModuleType:
    path = ROOT / "papers" / paper / "reproduce.py"
    spec = importlib.util.spec_from_file_location(f"papers_{paper.replace('-', '_')}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for its dataclasses
    spec.loader.exec_module(module)
    return module


@cache
def _searched(
    model: str,
    device: str,
    devices: int,
    global_batch: int,
    budget_bytes: int,
    settings: tuple[tuple[str, Any], ...],
    effort: int,
) -> tuple[ClusterChoice, float]:
    began = time.perf_counter()
    found = choose(
        model,
        budget_bytes,
        devices=devices,
        global_batch=global_batch,
        device=device,
        effort=effort,
        offload=False,
        **dict(settings),
    )
    return found, time.perf_counter() - began


def main() -> None:
    """Print a table of all runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a part of a run's name")
    parser.add_argument("--effort", type=int, default=40, help="candidates simulated, at most")
    given = parser.parse_args()
    print(
        f"`python benchmarks/published_clusters.py --effort {given.effort}`, schedsim "
        f"{schedsim.__version__}: times are predictions of one model for both.\n"
    )
    print("| run | devices | its step (s) | chosen (s) | chosen/its | gap | seconds | chosen |")
    print("|---|---:|---:|---:|---:|---:|---:|---|")
    num, slower = 0, 0
    for name, model, device, options in published():
        if given.only not in name:
            continue
        its = schedsim.cluster(model, device=device, **options)
        devices = math.prod(options.get(degree, 1) for degree in _DEGREES if degree != "expert")
        data = options.get("fsdp", 1) * options.get("replicate", 1)
        left = {k: v for k, v in options.items() if k not in (*_DEGREES, *_CHOSEN)}
        budget = max(int(_MEMORY[device]), its.reserved_bytes)
        found, took = _searched(
            model,
            device,
            devices,
            options.get("batch", 1) * data,
            budget,
            tuple(sorted(left.items())),
            given.effort,
        )
        num += 1
        if found.best is None:
            slower += 1
            print(
                f"| {name} | {devices} | {its.step_s:.3f} | none | | | {took:.0f} | |", flush=True
            )
            continue
        best = found.best
        slower += best.step_s > its.step_s * (1 + 1e-9)
        gap = 1 - found.lower_bound_s / best.step_s
        words = ", ".join(
            f"{degree} {getattr(best.degrees, degree)}"
            for degree in _DEGREES
            if getattr(best.degrees, degree) > 1
        )
        training = best.training
        words += f", {training.num_micro_batches} micro-batches, recompute {training.recompute}"
        print(
            f"| {name} | {devices} | {its.step_s:.3f} | {best.step_s:.3f} | "
            f"{best.step_s / its.step_s:.3f} | {gap:.1%} | {took:.0f} | {words} |",
            flush=True,
        )
    print(f"\n{num} runs, {slower} of them faster than what the search chose.")


if __name__ == "__main__":
    main()
