"""``schedsim plot``: pictures of memory over time, of the trade-off, of a schedule."""

from __future__ import annotations

import click

from ..app import SuggestingGroup, help_without_command
from . import cluster_picture, curve_pictures, memory, pipeline_picture, validation


@click.group(
    "plot",
    cls=SuggestingGroup,
    invoke_without_command=True,
    subcommand_metavar="timeline|gantt|frontier|schedule|pipeline|cluster|sweep|validate [ARGS]...",
    short_help="Draw memory over a step, the trade-off curve, or a schedule.",
)
@click.pass_context
def command(ctx: click.Context) -> int:
    """Draw a picture of a step, a schedule, a trade-off or results, as svg, png or pdf.

    \b
    schedsim plot timeline --layers 96 plan.json -o timeline.svg
    schedsim plot frontier --layers 96 -o frontier.svg
    schedsim plot schedule --layers 24 --mem 4GB -o schedule.png
    """
    return help_without_command(ctx)


for one in (
    memory.timeline,
    memory.gantt,
    memory.schedule,
    curve_pictures.frontier,
    curve_pictures.sweep,
    pipeline_picture.pipeline,
    cluster_picture.cluster_picture,
    validation.validate,
):
    command.add_command(one)
