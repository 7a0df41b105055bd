"""``schedsim plot cluster``: memory by rank and kind, streams of one rank over time."""

from __future__ import annotations

import click

from ..app import YES
from ..help import GroupedCommand
from ..options.cluster_options import ClusterRequest, cluster_options
from ..options.files import output_option
from ..show import working
from .pictures import check_suffix, write_picture


@click.command(
    "cluster", cls=GroupedCommand, short_help="Memory by rank and kind; streams of one rank."
)
@output_option("Picture to write: .svg, .png or .pdf.", required=True)
@cluster_options
def cluster_picture(request: ClusterRequest, output: str) -> int:
    """Draw the memory of each pipeline rank by kind, and the streams of one rank over time.

    \b
    schedsim plot cluster --preset llama3-8b --devices 8 --batch 2 -o cluster.svg
    """
    check_suffix(output)
    from ...clusters import cluster
    from ...figures.plot_cluster import draw_cluster

    with working("simulating the ranks"):
        found = cluster(request.preset, **request.words())
    write_picture(draw_cluster(found), output)
    return YES
