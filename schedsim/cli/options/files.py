"""Files and the form of the output: ``-o``, ``--json`` and ``--schedule``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
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


def check_outputs(outputs: Mapping[str, str | None], inputs: Iterable[str | None]) -> None:
    """Refuse outputs, by their flags, that are one of `inputs` or one another's file.

    An input may stand with a prefix or a suffix: ``hf:config.json``, ``model.py:build,layers=4``.
    """
    read = {Path(name).resolve() for given in inputs if given for name in _file_names(given)}
    written: dict[Path, str] = {}
    for flag, value in outputs.items():
        if value is None:
            continue
        path = Path(value).resolve()
        if path in read:
            raise SchedsimError(
                f"{flag} {value} would overwrite an input", hint="name another file"
            )
        if path in written:
            raise SchedsimError(
                f"{flag} {value} is the file of {written[path]}, too", hint="name another file"
            )
        written[path] = flag


def _file_names(given: str) -> tuple[str, ...]:
    """What `given` may be as the name of a file."""
    head = given.partition(",")[0].removeprefix("hf:")
    return (given, head, head.rpartition(".py:")[0] + ".py") if ".py:" in head else (given, head)


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
