"""``schedsim planners``: the list of planners."""

from __future__ import annotations

import click

from .app import YES
from .help import GroupedCommand
from .options.files import json_option
from .show import print_json, print_table

# Column widths: with two blanks between columns, a row has at most 100 characters.
_FACTS, _SUMMARIES = (18, 12, 18, 24, 20), (18, 80)


@click.command(
    "planners",
    cls=GroupedCommand,
    short_help="The planners: what each takes, costs, and is optimal for.",
)
@json_option
def command(as_json: bool) -> int:
    """List the planners: what each takes, costs, and is optimal for.

    \b
    schedsim planners
    """
    from ..algorithms import all_planners

    infos = list(all_planners().values())
    if as_json:
        fields = ("name", "summary", "optimal_for", "complexity", "source")
        rows = [{f: getattr(info, f) for f in fields} | {"kinds": info.kinds} for info in infos]
        print_json({"schema": "schedsim.planners/1", "planners": rows})
        return YES
    facts = [
        (info.name, ", ".join(info.kinds), info.complexity, info.optimal_for, info.source)
        for info in infos
    ]
    print_table(("planner", "takes", "time", "optimal for", "source"), facts, left=5, most=_FACTS)
    click.echo()
    summaries = [(info.name, info.summary) for info in infos]
    print_table(("planner", "what it does"), summaries, left=2, most=_SUMMARIES)
    return YES
