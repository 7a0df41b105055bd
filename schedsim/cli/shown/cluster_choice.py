"""``cluster --search``: run the joint choice, and show it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from ...errors import SchedsimError
from ...units import format_bytes, format_bytes_short, format_seconds
from ..app import NO
from ..options.cluster_options import ClusterRequest
from ..show import print_facts, print_json, print_table, working

if TYPE_CHECKING:
    from ...clusters import ClusterChoice, ClusterPrediction

DEGREES = ("fsdp", "replicate", "tensor", "pipeline", "context", "expert")
"""Degrees in the order in which they are shown."""


def searched(
    request: ClusterRequest,
    budget: int | None,
    global_batch: int | None,
    effort: int | None,
    *,
    host_bytes: int | None,
    framework: str | None,
) -> ClusterChoice:
    """The joint choice, in the words of `framework` if it is given."""
    from ...clusters import choose

    for option, value in (("--mem", budget), ("--devices", request.devices)):
        if value is None:
            raise SchedsimError(f"--search needs {option}", hint=f"add {option}")
    words = request.words()
    if effort is not None:
        words["effort"] = effort
    assert budget is not None
    assert request.devices is not None
    sequences = request.devices if global_batch is None else global_batch
    words |= {"framework": framework, "host_bytes": host_bytes}
    with working("choosing"):
        return choose(request.preset, budget, global_batch=sequences, **words)


def search_document(choice: ClusterChoice) -> dict[str, Any]:
    """The search, as part of a JSON document."""
    return {
        "search": {
            "optimal": choice.optimal,
            "lower_bound_s": choice.lower_bound_s,
            "num_candidates": choice.num_candidates,
            "num_simulated": choice.num_simulated,
            "binds": choice.binds,
            "narrowed": list(choice.narrowed),
            "runners_up": [one.document() for one in choice.runners_up],
        }
    }


def nothing_fits(choice: ClusterChoice, as_json: bool) -> int:
    """Say that no candidate fits."""
    if as_json:
        print_json(
            {"schema": "schedsim.cluster/1", "best": None, "least_bytes": choice.least_bytes}
        )
    assert choice.least_bytes is not None
    for line in choice.narrowed:
        click.echo(f"note: {line}", err=True)
    least = f"{format_bytes(choice.least_bytes)} is the least found: --mem {_mib(choice)}MiB"
    if math.isinf(choice.lower_bound_s):  # no candidate is left
        click.echo(
            f"error: none of {choice.num_candidates} candidates fits\n"
            f"hint: {least}; more devices or shorter sequences need less of each",
            err=True,
        )
        return NO
    click.echo(
        f"error: none of {choice.num_candidates} candidates is known to fit, "
        f"{choice.num_simulated} of them simulated\n"
        f"hint: {least}; a larger --effort tries more",
        err=True,
    )
    return NO


def _mib(choice: ClusterChoice) -> int:
    """The least whole number of MiB with which a step fits."""
    assert choice.least_bytes is not None
    return -(-choice.least_bytes // 2**20)


def show_choice(choice: ClusterChoice, again: str) -> None:
    """Print what the search found; `again` is the command line that predicts its step."""
    assert choice.best is not None
    gap = choice.best.step_s / choice.lower_bound_s - 1
    proven = "the fastest of the space" if choice.optimal else f"gap {gap:.1%}"
    click.echo()
    print_facts(
        [
            ("searched", f"{choice.num_candidates} candidates, {choice.num_simulated} simulated"),
            *(("narrowed", line) for line in choice.narrowed),
            ("lower bound", f"{format_seconds(choice.lower_bound_s)} over them: {proven}"),
            ("binds", choice.binds),
            ("again", again),
        ]
    )
    click.echo()
    print_table(
        (*DEGREES, "micro", "order", "zero", "recompute", "step", "reserved"),
        [
            (
                *(str(getattr(one.degrees, name)) for name in DEGREES),
                str(one.training.micro_batches(one.degrees)),
                one.training.schedule
                + (f" x{one.training.num_chunks}" if one.training.num_chunks > 1 else ""),
                _zero(one),
                one.training.recompute,
                format_seconds(one.step_s),
                format_bytes_short(one.reserved_bytes),
            )
            for one in (choice.best, *choice.runners_up)
        ],
        right=(0, 1, 2, 3, 4, 5, 6, 8, 10, 11),
    )


def _zero(found: ClusterPrediction) -> str:
    """The ZeRO stage that the step works at."""
    state, gathers_once = found.training.state, found.degrees.pipeline > 1
    if state != "fsdp2":
        return "1" if state == "megatron" else "-"
    return "2" if gathers_once else str(found.training.zero_stage)
