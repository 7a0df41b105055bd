"""Files and the form of the output: ``-o``, ``--json`` and ``--schedule``."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ...errors import SchedsimError
from . import complete


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")(
        function
    )


def check_writable(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse a file that cannot be written, before anything is computed."""
    if value is not None:
        flag, path = param.opts[0], Path(value)
        if not path.parent.is_dir():
            raise SchedsimError(
                f"{flag} {value}: folder {path.parent} does not exist", hint="make it first"
            )
        if path.is_dir():
            raise SchedsimError(f"{flag} {value} is a folder", hint="name a file in it")
        if not os.access(path.parent, os.W_OK):
            raise SchedsimError(
                f"{flag} {value}: folder {path.parent} is not writable", hint="choose another"
            )
    return value


def output_option(help_text: str, *, required: bool = False) -> Callable[..., Any]:
    """``-o FILE``, with its folder checked before anything is computed."""
    return click.option(
        "-o",
        "--output",
        metavar="FILE",
        callback=check_writable,
        required=required,
        help=help_text,
        shell_complete=complete.files,
    )


def schedule_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--schedule FILE``, read by `given_schedule`."""
    return click.option(
        "--schedule",
        "schedule_file",
        metavar="FILE",
        shell_complete=complete.files,
        help="File of op names with spaces between them; - reads stdin.",
    )(function)
