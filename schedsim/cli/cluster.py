"""``schedsim cluster``: memory of every rank and time of a step on many devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import SchedsimError
from ..units import format_bytes, format_bytes_short, format_seconds
from .app import NO, YES
from .help import GroupedCommand
from .options.cluster_options import ClusterRequest, cluster_options
from .options.files import json_option, output_option
from .options.typed_sizes import SizeType
from .predicted_step import predicted_step
from .show import print_facts, print_json, print_table
from .shown.cluster_choice import DEGREES, nothing_fits, search_document, searched, show_choice
from .shown.cluster_command import command_of

if TYPE_CHECKING:
    from ..clusters import ClusterPrediction


@click.command(
    "cluster",
    cls=GroupedCommand,
    short_help="Memory of every rank and time of a step on many devices.",
)
@json_option
@output_option("Write the timeline of one rank to FILE, a Perfetto trace.")
@click.option("--mem", "budget", type=SizeType(), help="Bytes that a device may reserve.")
@click.option(
    "--host-mem", "host_bytes", type=SizeType(), help="Host memory of a device, for offloading."
)
@click.option("--search", is_flag=True, help="Choose degrees, order and recomputation for --mem.")
@click.option(
    "--global-batch", type=int, help="With --search: sequences per step; one per device by default."
)
@click.option("--effort", type=int, help="With --search: the most candidates to simulate [40].")
@click.option("--launch", help="Also print the settings for torchtitan or megatron.")
@cluster_options
def command(request: ClusterRequest, **asked: Any) -> int:
    """Predict a training step of a published model on a cluster.

    Exit code 1 if a rank reserves more than --mem (by default the device's memory), or keeps more
    on its host than --host-mem (no limit by default). With --search, the degrees that are not
    given, the order of micro-batches and the recomputation of each rank are chosen together, for
    the fastest step that fits.

    \b
    schedsim cluster --preset llama3-8b --devices 8 --fsdp 8 --batch 2 --recompute selective
    schedsim cluster --preset llama3-405b --devices 512 --tensor 8 --pipeline 8 --batch 32 \\
        --recompute full --compile
    schedsim cluster --preset llama3-8b --devices 8 --batch 2 --recompute fit --mem 75GB
    schedsim cluster --preset llama3-8b --devices 8 --global-batch 16 --mem 80GB --search
    """
    budget, as_json = asked["budget"], asked["as_json"]
    choice = None
    if asked["search"]:
        choice = searched(
            request,
            budget,
            asked["global_batch"],
            asked["effort"],
            host_bytes=asked["host_bytes"],
            framework=asked["launch"],
        )
        if choice.best is None:
            return nothing_fits(choice, as_json)
        found = choice.best
    else:
        for option, name in (("--global-batch", "global_batch"), ("--effort", "effort")):
            if asked[name] is not None:
                raise SchedsimError(f"{option} belongs to --search", hint="add --search")
        found = predicted_step(request, budget)
    settings = _launch(found, asked["launch"])
    if asked["output"] is not None:
        from ..simulation.trace import write_trace

        title = f"{found.model.name}, {found.time.timeline_of}"
        write_trace(found.time.timeline, asked["output"], title)
        click.echo(f"wrote {asked['output']}: open it in ui.perfetto.dev", err=True)
    limit = budget if budget is not None else found.fabric.device.memory_bytes
    host_limit = asked["host_bytes"]
    if as_json:
        extra: dict[str, Any] = {"launch": settings} if settings is not None else {}
        if host_limit is not None:
            extra["host_budget_bytes"] = host_limit
        more = {}
        if choice is not None:
            again = command_of(request, found, limit, host_limit)
            more = search_document(choice) | {"again": again}
        print_json(found.document() | {"budget_bytes": limit} | extra | more)
    else:
        _show(found, limit, host_limit)
        if choice is not None:
            show_choice(choice, command_of(request, found, limit, host_limit))
        if settings is not None:
            click.echo(f"\n{settings}", nl=False)
    hosts_hold = host_limit is None or _on_host_bytes(found) <= host_limit
    return YES if found.reserved_bytes <= limit and hosts_hold else NO


def _launch(found: ClusterPrediction, framework: str | None) -> str | None:
    if framework is None:
        return None
    from ..clusters.launch_settings import launch_settings

    return launch_settings(found, framework)


def _on_host_bytes(found: ClusterPrediction) -> int:
    return max(rank.host_bytes for rank in found.ranks)


def _host_facts(found: ClusterPrediction, limit: int | None) -> list[tuple[str, str]]:
    most = _on_host_bytes(found)
    if not most and limit is None:
        return []
    of = "" if limit is None else f" of {format_bytes_short(limit)}"
    over = ": too much" if limit is not None and most > limit else ""
    return [("on hosts", f"{format_bytes(most)}{of} of offloaded tensors per device{over}")]


def _show(found: ClusterPrediction, limit: int, host_limit: int | None) -> None:
    """The prediction, for people."""
    from ..clusters.op_words import in_words

    model, degrees, training = found.model, found.degrees, found.training
    click.echo(
        f"{model.name}, {model.num_parameters:,} parameters ({model.source})"
        if model.source
        else f"{model.name}, {model.num_parameters:,} parameters"
    )
    split = [f"{name} {getattr(degrees, name)}" for name in DEGREES if getattr(degrees, name) > 1]
    click.echo(
        f"{degrees.num_devices} {found.fabric.device.name}: {', '.join(split) or 'no parallelism'}"
    )
    micro = training.micro_batches(degrees)
    click.echo(
        f"{training.batch} sequence{'s' if training.batch > 1 else ''} of {training.seq} tokens "
        f"per data-parallel rank, {micro} micro-batch{'es' if micro > 1 else ''}, "
        f"{'ZeRO 2, ' if training.zero_stage == 2 else ''}recompute {training.recompute}"
    )
    fabric = found.fabric
    attention = f" ({fabric.efficiency * fabric.attention_share:.0%} in attention)"
    click.echo(
        f"times: roofline at {fabric.efficiency:.0%} of the arithmetic peak"
        f"{attention if fabric.attention_share != 1 else ''}, "
        f"{fabric.memory_share:.0%} of the memory's bandwidth ({fabric.device.source})"
    )
    for note in found.notes:
        click.echo(f"note: {note}")
    click.echo()
    fits = "fits" if found.reserved_bytes <= limit else "does not fit"
    facts = [
        ("reserved", f"{format_bytes(found.reserved_bytes)} by the allocator on the fullest rank"),
        ("budget", f"{format_bytes(limit)} per device: {fits}"),
        ("in use", f"{format_bytes(found.peak_bytes)} at the peak"),
        *_host_facts(found, host_limit),
        ("step time", format_seconds(found.step_s)),
        ("tokens", f"{found.tokens_per_device_s:,.0f} per second and device"),
        ("MFU", f"{found.mfu:.1%}".replace("%", " %")),
    ]
    if degrees.pipeline > 1:
        facts.append(("bubble", f"{found.time.bubble:.1%}".replace("%", " %")))
    print_facts(facts)
    click.echo()
    fullest = found.fullest
    click.echo(f"at the peak of pipeline rank {fullest.rank}, during {in_words(fullest.peak_op)}")
    rows = sorted(fullest.kinds.items(), key=lambda item: -item[1])
    print_facts([(f"  {kind}", format_bytes_short(size)) for kind, size in rows])
    if degrees.pipeline > 1:
        click.echo()
        print_table(
            ("rank", "reserved", "in use", "state", "activations", "logits"),
            [
                (
                    str(rank.rank),
                    format_bytes_short(rank.reserved_bytes),
                    format_bytes_short(rank.peak_bytes),
                    format_bytes_short(
                        sum(
                            rank.kinds.get(kind, 0)
                            for kind in ("parameters", "gradients", "optimizer state")
                        )
                    ),
                    format_bytes_short(rank.kinds.get("activations", 0)),
                    format_bytes_short(rank.kinds.get("logits and loss", 0)),
                )
                for rank in found.ranks
            ],
        )
