"""``schedsim plot validate``: predicted and measured memory in one picture."""

from __future__ import annotations

from pathlib import Path

import click

from ...errors import SchedsimError
from ...files.reader import parse_json
from ..app import YES
from ..help import GroupedCommand
from ..options.files import output_option
from .pictures import check_suffix, write_picture


@click.command(
    "validate", cls=GroupedCommand, short_help="Predicted and measured memory in one picture."
)
@click.argument("report_file", metavar="REPORT.json")
@output_option("Picture to write: .svg, .png or .pdf.", required=True)
def validate(report_file: str, output: str) -> int:
    """Draw the memory over the runs of a validated schedule, as predicted and as measured.

    \b
    schedsim plot validate report.json -o validation.svg
    """
    check_suffix(output)
    from ...figures.plot import draw_validation

    document = parse_json(Path(report_file).read_bytes())
    if not isinstance(document, dict) or document.get("schema") != "schedsim.validation/1":
        raise SchedsimError(
            f"{report_file} is no validation report",
            hint="schedsim validate ... -o report.json writes one",
        )
    try:
        figure = draw_validation(document)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise SchedsimError(
            f"{report_file} is not a complete validation report: {error}",
            hint="was the file edited?",
        ) from None
    write_picture(figure, output)
    return YES
