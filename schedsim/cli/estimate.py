"""``schedsim estimate``: the memory of a step, where it fits, and what recomputation costs
there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from ..api import try_plan
from ..errors import PlannerLimitError, SchedsimError
from ..plans.budgets import store_all_peak
from ..plans.plan import Plan
from ..units import format_bytes, format_bytes_short, format_seconds
from .app import NO, YES
from .given.workload_options import workload_options
from .given.workload_source import Source
from .help import GroupedCommand
from .options.files import json_option
from .show import percent, print_facts, print_json, print_table, working

if TYPE_CHECKING:
    from ..workloads import Device, WorkloadOptions

_EFFORT_EACH = 2.0
"""Work for each device, about seconds: the same plan on a busy machine."""


@click.command(
    "estimate",
    cls=GroupedCommand,
    short_help="Memory of a step, where it fits, and what recomputation costs there.",
)
@json_option
@workload_options
def command(source: Source, as_json: bool) -> int:
    """Estimate the memory of a training step, model state included, on each device.

    Model state is counted unless --static says otherwise. If the step does not fit a device as it
    is, schedsim plans it within the memory of the device; the table then says how much longer the
    step takes, and whether that is proven best. Nothing is kept free for the allocator or the
    driver. hf:NAME is a published model, hf:FILE its config.json, hf:llama a family's defaults in
    transformers. Exit code 1 if the step fits no device.

    \b
    schedsim estimate --preset llama3-8b --batch 1
    schedsim estimate hf:Qwen/Qwen3-30B-A3B --optimizer adamw --batch 8 --seq 4096
    schedsim estimate hf:my_model/config.json --optimizer sgd-momentum-mixed --device h100
    """
    options = _by_formula(source)
    if options is None or options.synthetic is not None:
        raise SchedsimError(
            "estimate takes a model given by formula, which it times on each device",
            hint="give --preset or --layers; files and real models go to schedsim plan --mem",
        )
    if source.level is not None:
        raise SchedsimError(
            f"--level {source.level} is for real models", hint="a formula takes --granularity"
        )
    if source.again:
        raise SchedsimError(
            "--remeasure is for real models", hint="the times of a formula are rooflines"
        )
    if options.times_path is not None:
        raise SchedsimError("--times holds for one device only", hint="leave --times out")
    if options.static is None:
        options = replace(options, static="auto")
    with working("planning for each device"):
        lines, rows = _rows(options)
        model = _model(options)
    if as_json:
        document = {"schema": "schedsim.estimate/1", "model": model, "assumptions": lines}
        print_json({**document, "devices": rows})
    else:
        _show(model, lines, rows)
    return YES if any(row["fits"] for row in rows) else NO


def _by_formula(source: Source) -> WorkloadOptions | None:
    """The formula that the options describe; an argument ``hf:...`` is a preset of that name."""
    from ..workloads import WorkloadOptions

    named = [name for name in source.files if name.startswith("hf:")]
    if not named:
        return source.formula()
    others = [name for name in source.files if name not in named] + named[1:]
    if others or source.options.get("preset") is not None:
        other = others[0] if others else f"--preset {source.options['preset']}"
        raise SchedsimError(f"both {named[0]} and {other} are given", hint="one model at a time")
    return WorkloadOptions(**{**source.options, "preset": named[0]}, allow=source.allow)


def _model(options: WorkloadOptions) -> dict[str, Any]:
    """The model by itself, with the numbers of `accelerate estimate-memory`, from its formula."""
    from ..workloads import model_state_bytes
    from ..workloads.build import model_record
    from ..workloads.devices import DTYPE_BYTES
    from ..workloads.model_state import optimizer_of
    from ..workloads.options import model_config

    config = model_config(options)
    record = model_record(config)
    element, optimizer = DTYPE_BYTES[config.dtype], optimizer_of(options.optimizer, config.dtype)
    parts = record.stages if len(record.stages) > 1 else ()
    largest = max((stage.num_parameters for stage in parts), default=None)
    return {
        "name": record.name,
        "dtype": config.dtype,
        "num_parameters": record.num_parameters,
        "largest_layer_bytes": None if largest is None else largest * element,
        "weights_bytes": record.num_parameters * element,
        "optimizer": options.optimizer or optimizer,
        "state_bytes": model_state_bytes(record.num_parameters, optimizer=optimizer),
    }


def _rows(options: WorkloadOptions) -> tuple[list[str], list[dict[str, Any]]]:
    """The assumptions, and a row for each device, by ascending memory."""
    from ..workloads import build_workload, get_device
    from ..workloads.devices import device_names

    names = [options.device] if options.device is not None else device_names()
    devices = sorted((get_device(name) for name in names), key=lambda one: one.memory_bytes)
    lines: list[str] = []
    rows = []
    for device in devices:
        asked = options.device or device.name
        built = build_workload(replace(options, device=asked))
        lines = [*built.assumptions[:2], *built.assumptions[3:]]
        peak_bytes = store_all_peak(built.workload)
        row: dict[str, Any] = {
            "device": device.name,
            "memory_bytes": device.memory_bytes,
            "static_bytes": built.workload.static_bytes,
            "store_all_bytes": peak_bytes,
            "store_all_s": built.workload.store_all_s,
            "least_bytes": None,
        }
        rows.append(row | _outcome(built.workload, device, peak_bytes))
    return lines, rows


def _outcome(workload: Any, device: Device, peak_bytes: int) -> dict[str, Any]:
    if peak_bytes <= device.memory_bytes:
        return {"fits": True, "status": "optimal", "overhead": 0.0, "peak_bytes": peak_bytes}
    try:
        plan: Plan = try_plan(workload, device.memory_bytes, effort=_EFFORT_EACH)
    except PlannerLimitError:
        return {"fits": False, "status": "unknown", "overhead": None, "peak_bytes": None}
    return {
        "fits": plan.feasible,
        "status": plan.status,
        "overhead": plan.overhead,
        "peak_bytes": plan.peak_bytes,
        "least_bytes": plan.min_feasible_bytes,
    }


def _one_line(model: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """The model in one line, and the smallest devices on which it trains."""
    fitting = [row for row in rows if row["fits"]]
    whole = next((row["device"] for row in fitting if not row["overhead"]), "none")
    first = fitting[0] if fitting else None
    recomputing = "none"
    if first is not None:
        recomputing = f"{first['device']}, {percent(first['overhead'])}"
    largest = model["largest_layer_bytes"]
    print_table(
        (
            "model",
            "dtype",
            "largest layer",
            "weights",
            model["optimizer"],
            "a step",
            "fits as it is",
            "recomputing",
        ),
        [
            (
                model["name"],
                model["dtype"],
                "-" if largest is None else format_bytes_short(largest),
                format_bytes_short(model["weights_bytes"]),
                format_bytes_short(model["state_bytes"]),
                format_bytes_short(rows[0]["store_all_bytes"]),
                whole,
                recomputing,
            )
        ],
        left=2,
    )


def _show(model: dict[str, Any], lines: list[str], rows: list[dict[str, Any]]) -> None:
    _one_line(model, rows)
    click.echo()
    for line in lines:
        click.echo(line)
    click.echo()
    state, peak = rows[0]["static_bytes"], rows[0]["store_all_bytes"]
    print_facts(
        [
            ("model state", format_bytes(state)),
            ("activations", f"{format_bytes(peak - state)}, gradients of them and workspaces too"),
            ("together", format_bytes(peak)),
        ]
    )
    click.echo()
    print_table(
        ("device", "memory", "step", "recomputing", "peak"),
        [
            (
                row["device"],
                format_bytes_short(row["memory_bytes"]),
                format_seconds(row["store_all_s"] * (1 + (row["overhead"] or 0.0)))
                if row["fits"]
                else "-",
                _recomputing(row),
                format_bytes_short(row["peak_bytes"]) if row["fits"] else _needs(row),
            )
            for row in rows
        ],
    )


def _recomputing(row: dict[str, Any]) -> str:
    if not row["fits"]:
        return "does not fit"
    return percent(row["overhead"]) if row["overhead"] else "nothing"


def _needs(row: dict[str, Any]) -> str:
    least = row["least_bytes"]
    return f"needs {format_bytes_short(least)}" if least is not None else "-"
