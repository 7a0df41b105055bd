"""``schedsim profile``: a real model captured and measured, as a workload file."""

from __future__ import annotations

import click

from ..dataflow.chain import Chain
from ..dataflow.graph import Graph
from ..errors import SchedsimError
from ..files.document import save, to_dict
from ..simulation.schedule import Schedule
from ..simulation.simulator import simulate
from ..units import format_bytes, format_bytes_short, format_seconds
from ..workloads.given import is_target
from .app import YES
from .dry import on_device
from .given.loaded import need_torch
from .help import GroupedCommand
from .options.files import json_option, output_option
from .show import print_facts, print_json, print_table, working
from .validate import target_options


@click.command(
    "profile", cls=GroupedCommand, short_help="Capture a real model, with measured sizes and times."
)
@target_options
@click.option("--rounds", default=7, show_default=True, help="Timed runs of each block.")
@json_option
@output_option("Write the workload to FILE.")
def command(
    target: str,
    device: str | None,
    level: str | None,
    meter: str | None,
    rounds: int,
    again: bool,
    as_json: bool,
    output: str | None,
) -> int:
    """Capture a model as a chain of blocks, or with --level op as a graph of its ops.

    Blocks are measured on this machine's device. The op level also takes the name of another
    device, whose times are rooflines; the capture then allocates nothing.

    \b
    schedsim profile my_model.py:build -o profile.json
    schedsim profile model:gpt2-xl --level op --device a100-80gb -o gpt2-xl.json
    """
    if not is_target(target):
        raise SchedsimError(
            f"{target!r} is no model", hint="FILE.py:FUNCTION, model:resnet50 or hf:gpt2"
        )
    on_device(device)
    need_torch()
    from ..validation.targets import read_target

    with working("capturing the model"):
        read = read_target(
            target,
            level=level or "block",
            device=device,
            meter=meter,
            remeasure=again,
            rounds=rounds,
        )
    workload = read.workload
    if output is not None:
        save(workload, output)
    if as_json:
        print_json(to_dict(workload))
        return YES
    for line in read.lines:
        click.echo(line)
    click.echo()
    everything = simulate(workload, Schedule.store_all(workload))
    print_facts(
        [
            ("static", format_bytes(workload.static_bytes)),
            ("store-all peak", format_bytes(everything.peak_bytes)),
            ("step time", format_seconds(workload.store_all_s)),
        ]
    )
    click.echo()
    if isinstance(workload, Chain):
        _show_chain(workload)
    else:
        _show_graph(workload)
    return YES


def _show_chain(chain: Chain) -> None:
    headers = ("stage", "forward", "backward", "output", "saved", "workspace F", "workspace B")
    rows = [
        (
            stage.name,
            format_seconds(stage.forward_s),
            format_seconds(stage.backward_s),
            format_bytes_short(stage.output_bytes),
            format_bytes_short(stage.saved_bytes),
            format_bytes_short(stage.forward_workspace_bytes),
            format_bytes_short(stage.backward_workspace_bytes),
        )
        for stage in chain.stages
    ]
    print_table(headers, rows)


def _show_graph(graph: Graph) -> None:
    longest = sorted(graph.ops, key=lambda op: -op.time_s)[:12]
    rows = [
        (
            op.name,
            op.phase,
            format_seconds(op.time_s),
            format_bytes_short(sum(op.writes.values())),
            format_bytes_short(op.workspace_bytes),
        )
        for op in longest
    ]
    click.echo(f"the longest of {graph.num_ops} ops")
    print_table(("op", "phase", "time", "writes", "workspace"), rows, left=2)
