"""``schedsim report``: a plan as one page for the browser."""

from __future__ import annotations

import click

from ..errors import SchedsimError
from ..files.atomic import write_atomically
from .given.loaded import read, schedule_of
from .given.workload_options import workload_options
from .given.workload_source import Source
from .help import GroupedCommand
from .options.files import output_option
from .show import working


@click.command("report", cls=GroupedCommand, short_help="A plan as one self-contained HTML page.")
@output_option("Write the page to FILE.", required=True)
@workload_options
def command(source: Source, output: str) -> int:
    """Write a page with summary, planners, memory over time, schedule and explanation.

    The page needs no network and no other file. Needs the extra ``report``.

    \b
    schedsim plan --layers 24 --mem 8GB -o plan.json
    schedsim report --layers 24 plan.json -o report.html
    """
    from ..figures.report import report

    loaded = read(source, plan=True)
    if loaded.plan is None:
        raise SchedsimError("no plan is given", hint="schedsim plan ... -o plan.json makes one")
    schedule_of(loaded.plan)
    with working("writing the report"):
        page = report(loaded.given, loaded.plan, loaded.assumptions)
    write_atomically(output, page)
    click.echo(f"wrote {output} ({len(page) / 1e6:.1f} MB)", err=True)
    return 0
