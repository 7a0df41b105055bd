"""``schedsim plot pipeline``: devices over time."""

from __future__ import annotations

import click

from ..app import YES
from ..given.made_pipeline import explain_infeasible, planned
from ..given.pipeline_options import PipelineRequest, pipeline_options
from ..help import GroupedCommand
from ..options.files import output_option
from ..show import working
from .pictures import check_suffix, write_picture


@click.command(
    "pipeline", cls=GroupedCommand, short_help="Devices over time, a numbered box per micro-batch."
)
@output_option("Picture to write: .svg, .png or .pdf.", required=True)
@pipeline_options
def pipeline(request: PipelineRequest, output: str) -> int:
    """Draw devices over time: forwards, recomputed forwards and backwards by micro-batch.

    \b
    schedsim plot pipeline --layers 8 --stages 4 --micro-batches 8 -o pipeline.svg
    schedsim plot pipeline --layers 32 --stages 4 --micro-batches 8 --mem 40GB -o tight.svg
    """
    check_suffix(output)
    from ...figures.plot_pipeline import draw_pipeline

    with working("planning the pipeline"):
        made = planned(request)
    made.check()
    if made.plan.run is not None:
        write_picture(draw_pipeline(made.plan.run), output)
    return YES if made.plan.feasible else explain_infeasible(made.plan)
