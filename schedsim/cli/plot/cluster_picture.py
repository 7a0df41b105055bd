"""``schedsim plot cluster``: memory by rank and kind, streams of one rank over time."""

from __future__ import annotations

import click

from ...errors import SchedsimError
from ...units import format_bytes_short
from ..app import NO, YES
from ..help import GroupedCommand
from ..options.cluster_options import FIT, ClusterRequest, cluster_options
from ..options.files import output_option
from ..options.typed_sizes import SizeType
from ..predicted_step import predicted_step
from .pictures import check_suffix, write_picture


@click.command(
    "cluster", cls=GroupedCommand, short_help="Memory by rank and kind; streams of one rank."
)
@output_option("Picture to write: .svg, .png or .pdf.", required=True)
@click.option("--mem", "budget", type=SizeType(), help="With --recompute fit: bytes of a device.")
@cluster_options
def cluster_picture(request: ClusterRequest, output: str, budget: int | None) -> int:
    """Draw the memory of each pipeline rank by kind, and the streams of one rank over time.

    Exit code 1 if --recompute fit finds nothing that fits in --mem.

    \b
    schedsim plot cluster --preset llama3-8b --devices 8 --batch 2 -o cluster.svg
    schedsim plot cluster --preset llama3-8b --devices 8 --recompute fit --mem 40GB -o fit.svg
    """
    check_suffix(output)
    if budget is not None and request.words().get("recompute") != FIT:
        raise SchedsimError(
            "--mem changes nothing in this picture", hint="add --recompute fit, or leave it out"
        )
    from ...figures.plot_cluster import draw_cluster

    found = predicted_step(request, budget)
    write_picture(draw_cluster(found), output)
    if budget is None or found.reserved_bytes <= budget:
        return YES
    needed = format_bytes_short(found.reserved_bytes)
    click.echo(f"note: with everything recomputed it reserves {needed}, over --mem", err=True)
    return NO
