"""``schedsim plot pipeline``: devices over time."""

from __future__ import annotations

import click

from ..app import YES
from ..given.pipeline import explain_infeasible, make_pipeline, plan_pipeline, replay
from ..given.pipeline_options import PipelineOptions, pipeline_options
from ..given.source import Source
from ..options.files import output_option
from ..show import working
from .pictures import check_suffix, write_picture


@click.command("pipeline", short_help="Devices over time, a numbered box per micro-batch.")
@output_option("Picture to write: .svg, .png or .pdf.", required=True)
@pipeline_options
def pipeline(
    source: Source, budget: int | str | None, options: PipelineOptions, output: str
) -> int:
    """Devices over time: forwards, recomputed forwards and backwards by micro-batch.

    \b
    schedsim plot pipeline --layers 8 --stages 4 --micro-batches 8 -o pipeline.svg
    schedsim plot pipeline --layers 32 --stages 4 --micro-batches 8 --mem 40GB -o tight.svg
    """
    check_suffix(output)
    from ...figures.plot_pipeline import draw_pipeline

    with working("planning the pipeline"):
        if options.replay is not None:
            found, _, _ = replay(source, options, budget)
        else:
            made, _ = make_pipeline(source, options)
            found = plan_pipeline(made, options, budget)
    if found.run is not None:
        write_picture(draw_pipeline(found.run), output)
    return YES if found.feasible else explain_infeasible(found)
