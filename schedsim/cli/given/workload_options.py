"""The workload of a command, as a `Source`: file arguments, or the options of a formula."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..options import complete
from ..options.complete import OF_OPTIONS
from ..options.files import check_outputs
from ..options.formula import OPTIONS, SWITCHES, flags
from ..options.typed_sizes import SizeType
from .workload_source import Source

Function = TypeVar("Function", bound=Callable[..., Any])

# Options whose value is a file that is read.
_INPUTS = ("times_path", "schedule_file", "replay")

LEVEL_HELP = "Capture the model by block or by op; by default as a given plan was, else by block."


def _is_file(name: str | None) -> bool:
    """Whether a preset or a device is read from a file, and is no name of one that is known."""
    return name is not None and (name.startswith("hf:") or name.endswith(".json"))


def remeasure_option(function: Function) -> Function:
    """``--remeasure``, for every command that may reuse times measured before."""
    return click.option(
        "--remeasure",
        "--again",
        "again",
        is_flag=True,
        help="Measure again instead of reusing times measured before.",
    )(function)


def workload_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the file arguments and the formula options; the command gets a `Source`."""

    @functools.wraps(function)
    def command(files: tuple[str, ...], **given: Any) -> Any:
        outputs = {"-o": given.get("output"), "--certificate": given.get("certificate")}
        named = [given[name] for name in ("preset", "device") if _is_file(given[name])]
        check_outputs(outputs, [*files, *named, *(given.get(name) for name in _INPUTS)])
        options = {name: given.pop(name) for name in flags()}
        source = Source(files, options, given.pop("level"), again=given.pop("again"))
        return function(source, **given)

    for flag, field, help_text in reversed(SWITCHES):
        command = click.option(flag, field, is_flag=True, help=help_text)(command)
    command = click.option(
        "--static",
        type=SizeType("auto"),
        help="Model state: auto (by formula), or a size; by default none is counted.",
    )(command)
    command = remeasure_option(command)
    command = click.option(
        "--level",
        shell_complete=OF_OPTIONS["level"],
        help=LEVEL_HELP,
    )(command)
    for flag, field, kind, help_text in reversed(OPTIONS):
        completed = OF_OPTIONS.get(field)
        command = click.option(flag, field, type=kind, help=help_text, shell_complete=completed)(
            command
        )
    return click.argument("files", nargs=-1, metavar="[WORKLOAD]", shell_complete=complete.files)(
        command
    )
