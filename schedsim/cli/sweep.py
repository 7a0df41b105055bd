"""``schedsim sweep``: run an experiment file over processes, resumed after a kill."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import SchedsimError
from ..units import format_bytes_short, format_seconds
from ..workloads.given import is_target
from .app import NO, YES
from .given.loaded import read
from .given.workload_source import Source
from .help import GroupedCommand
from .options.files import json_option, output_option
from .options.formula import no_options
from .show import percent, print_json, print_table
from .shown.cluster_sweep import cluster_outcome, show_cluster_rows, show_cluster_runs

if TYPE_CHECKING:
    from ..dataflow.chain import Chain
    from ..dataflow.graph import Graph
    from ..sweeps import Run
    from ..sweeps.cluster_runs import ClusterRun
    from ..sweeps.experiment import Experiment, WorkloadSpec


@click.command(
    "sweep",
    cls=GroupedCommand,
    short_help="Many runs from one experiment file, resumed after a kill.",
)
@click.argument("experiment_file", metavar="EXPERIMENT.toml", type=click.Path())
@output_option(
    "File of results, one JSON line per run; runs that it already has are skipped.", required=True
)
@click.option("--jobs", "num_jobs", type=int, default=1, show_default=True, help="-1: every core.")
@click.option(
    "--backend",
    type=click.Choice(["loky", "dask", "ray"]),
    default="loky",
    show_default=True,
    help="loky: processes on this machine; dask, ray: a cluster.",
)
@click.option(
    "--address",
    help="Address of the cluster's scheduler; by default one is started on this machine.",
)
@click.option("--retry-errors", is_flag=True, help="Repeat the runs that ended with an error.")
@click.option("--dry-run", is_flag=True, help="Show the table of runs; run none.")
@json_option
def command(
    experiment_file: str,
    output: str,
    num_jobs: int,
    backend: str,
    address: str | None,
    retry_errors: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Run workloads x budgets x planners x seeds, and keep every result in one file.

    \b
    The same command goes on where a killed one stopped. Exit code 1 if a run ended with an
    error; a budget that cannot be met is a result. An experiment.toml:
      workloads = ["gpt2", "chain.json", "my_model.py:build", {preset = "gpt2-xl", batch = [4, 8]}]
      budgets = ["8GB", "50%"]
      planners = ["auto", {name = "rotor", num_slots = 500}]
      seeds = [0, 1]

    \b
    Settings of clusters instead, as in `schedsim.cluster`; lists multiply:
      clusters = [{preset = "llama3-8b", devices = [8, 64], recompute = ["full", "fit"]},
                  {preset = "llama3-8b", devices = 8, mem = "80GB", search = true}]

    \b
    schedsim sweep experiment.toml -o results.jsonl --jobs 4
    schedsim compare results.jsonl
    schedsim plot sweep results.jsonl -o results.svg
    """
    from ..sweeps import expand, read_experiment, run_sweep

    if num_jobs == 0 or num_jobs < -1:
        raise SchedsimError(f"--jobs {num_jobs} is no number of processes", hint="1 or more, or -1")
    experiment = read_experiment(experiment_file)
    if Path(output).resolve() in _inputs(experiment):
        raise SchedsimError(f"-o {output} would overwrite an input", hint="name another file")
    workloads = _build(experiment, output, dry_run=dry_run)
    planned, left_out = expand(experiment, workloads)
    runs: list[Run | ClusterRun] = [*planned, *experiment.clusters]
    for line in left_out:
        click.echo(f"left out: {line}", err=True)
    if not runs and len(workloads) == len(experiment.workloads):
        raise SchedsimError(
            f"{experiment_file}: no planner takes any of the workloads",
            hint="`schedsim planners` lists what each planner takes",
        )
    if dry_run:
        by = f"{num_jobs} at a time by {backend}" + (f" at {address}" if address else "")
        _show_runs(runs, output, as_json=as_json, by=by, retry_errors=retry_errors)
        return YES
    _warn_of_the_clock(planned)

    def progress(row: dict[str, Any], num_done: int) -> None:
        click.echo(f"{num_done}/{len(runs)}  " + "  ".join(_words(row)), err=True)

    rows = run_sweep(
        runs,
        output,
        num_jobs=num_jobs,
        backend=backend,
        address=address,
        retry_errors=retry_errors,
        on_row=progress,
    )
    failed = [row for row in rows if row["status"] == "error"]
    late = sum(row.get("ended_by") in ("clock", "stop") for row in rows)
    if late:
        click.echo(
            f"{late} of {len(rows)} runs were ended by their time limit: another sweep may find "
            "others; raise time_limit_s, or lower max_moves and effort",
            err=True,
        )
    counts = {
        status: sum(row["status"] == status for row in rows)
        for status in ("optimal", "feasible", "infeasible", "error")
    }
    if as_json:
        summary = {"file": output, "num_runs": len(rows), "num_ended_by_clock": late}
        print_json({"schema": "schedsim.sweep/1", **summary, "statuses": counts})
    else:
        if experiment.clusters:
            show_cluster_rows(rows)
            click.echo()
        says = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        click.echo(f"{len(rows)} runs in {output}: {says}")
    if failed:
        first = failed[0]
        click.echo(
            f"error: {len(failed)} of {len(rows)} runs ended with an error; the first, "
            f"{_of(first)}: {first['error']['message']}",
            err=True,
        )
        click.echo("hint: --retry-errors runs them again", err=True)
        return NO
    return YES


def _inputs(experiment: Experiment) -> set[Path]:
    files = [spec.target.partition(":")[0] for spec in experiment.workloads if spec.target]
    times = [spec.options["times_path"] for spec in experiment.workloads if _times(spec)]
    return {Path(name).resolve() for name in (experiment.path, *files, *times)}


def _times(spec: WorkloadSpec) -> bool:
    return spec.options.get("times_path") is not None


def _build(experiment: Experiment, output: str, *, dry_run: bool) -> dict[str, Chain | Graph]:
    """The workloads by label; a dry run leaves out models that would have to be measured."""
    built = {}
    for spec in experiment.workloads:
        workload = _workload(spec, output, measure=not dry_run)
        if workload is None:
            click.echo(f"{spec.label}: a model, measured when the sweep begins", err=True)
        else:
            built[spec.label] = workload
    return built


def _workload(spec: WorkloadSpec, output: str, *, measure: bool) -> Chain | Graph | None:
    source = Source((spec.target,) if spec.target else (), no_options(spec.options), spec.level)
    if not (spec.target and is_target(spec.target)):
        return read(source).workload
    # Measured once: a second measurement has other times, and would be another workload.
    from ..files.document import load, save
    from ..plans.plan import Plan

    kept = Path(f"{output}.workloads") / f"{_fingerprint(spec)}.json"
    if kept.exists():
        found = load(kept)
        assert not isinstance(found, Plan)
        return found
    if not measure:
        return None
    click.echo(f"measuring {spec.label}", err=True)
    workload = read(source).workload
    kept.parent.mkdir(exist_ok=True)
    save(workload, kept)
    return workload


def _fingerprint(spec: WorkloadSpec) -> str:
    """The identity of a model: its name, its level, and the text of its file."""
    target = spec.target or ""
    file = Path(target.partition(":")[0])
    content = file.read_bytes() if file.suffix == ".py" and file.is_file() else b""
    device = spec.options.get("device")
    text = f"{target}\n{spec.level}\n{device}\n".encode() + content
    return hashlib.sha256(text).hexdigest()[:24]


def _warn_of_the_clock(runs: list[Run]) -> None:
    """Warn about planners that the clock ends."""
    clocked = [run for run in runs if run.by_clock]
    if clocked:
        names = ", ".join(dict.fromkeys(run.planner for run in clocked))
        click.echo(
            f"{len(clocked)} of {len(runs)} runs are ended by the clock ({names}): another sweep "
            "may find others; their rows say reproducible: false",
            err=True,
        )


def _words(row: dict[str, Any]) -> tuple[str, ...]:
    """A new row, for the line of progress."""
    if row["kind"] == "cluster":
        return row["workload"], cluster_outcome(row)
    return row["workload"], row["budget"], row["planner"], _outcome(row)


def _of(row: dict[str, Any]) -> str:
    """The planner and the workload of a row."""
    planner = row.get("planner")
    return f"{planner} on {row['workload']}" if planner else str(row["workload"])


def _outcome(row: dict[str, Any]) -> str:
    if row["status"] == "error":
        return f"error: {row['error']['message']}"
    if row["overhead"] is None:
        return str(row["status"])
    return f"{row['status']} {percent(row['overhead'])}"


def _show_runs(
    runs: list[Run | ClusterRun], output: str, *, as_json: bool, by: str, retry_errors: bool
) -> None:
    """Print the runs, which of them are done already, and which processes would run the rest."""
    from ..sweeps import read_rows
    from ..sweeps.cluster_runs import ClusterRun

    rows = read_rows(output, clusters=True) if Path(output).exists() else []
    done = {row["key"] for row in rows if not (retry_errors and row["status"] == "error")}
    if as_json:
        listed = [{**run.head(), "done": run.key in done} for run in runs]
        print_json({"schema": "schedsim.runs/1", "file": output, "by": by, "runs": listed})
        return
    planned = [run for run in runs if not isinstance(run, ClusterRun)]
    if len(planned) < len(runs):
        labels = [(run.label, run.budget_bytes, run.key) for run in runs]
        show_cluster_runs(labels, done)
        click.echo(f"{len(runs)} runs, {by}")
        return
    print_table(
        ("workload", "budget", "planner", "options", "seed", "bytes", "done", "key"),
        [
            (
                run.label,
                run.budget,
                run.planner,
                ", ".join(f"{name}={_value(value)}" for name, value in run.options.items()) or "-",
                "-" if run.seed is None else str(run.seed),
                format_bytes_short(run.budget_bytes),
                "yes" if run.key in done else "no",
                run.key[:8],
            )
            for run in planned
        ],
        left=4,
    )
    num_done = sum(run.key in done for run in runs)
    limits = [run.options["time_limit_s"] for run in planned if "time_limit_s" in run.options]
    most = f", each within {format_seconds(max(limits))}" if limits else ""
    click.echo(f"\n{len(runs)} runs, {by}, {num_done} done in {output}{most}")


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
