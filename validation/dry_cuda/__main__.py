"""``python -m schedsim.validation.dry_cuda [--device NAME] [--memory SIZE] -- COMMAND``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from schedsim.errors import SchedsimError
from schedsim.units import parse_bytes

from .dry_devices import DEVICES, get_dry_device
from .label import LABEL
from .launch import start

USAGE = 2


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="What comes from it is " + LABEL + ".",
)
@click.option(
    "--device", default="a100-80gb", show_default=True, metavar="NAME", help=", ".join(DEVICES)
)
@click.option("--memory", metavar="SIZE", help="Memory, if not the device's own: 40GB, 24GiB.")
@click.option(
    "--values", is_flag=True, help="Every op computes, on the CPU: for small models and tests."
)
@click.option(
    "--late-events", is_flag=True, help="An event is over only when the host has waited for it."
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def main(
    device: str, memory: str | None, values: bool, late_events: bool, command: Sequence[str]
) -> None:
    """Run COMMAND with a CUDA device that allocates and computes nothing.

    \b
    python -m schedsim.validation.dry_cuda --device h200 -- python train.py
    python -m schedsim.validation.dry_cuda --memory 40GB -- python train.py
    python -m schedsim.validation.dry_cuda --values -- pytest -m gpu
    """
    if not command:
        raise SchedsimError("there is no command to run", hint="as in: -- python train.py")
    chosen = get_dry_device(device)
    if memory is not None:
        chosen = chosen.with_memory(parse_bytes(memory))
    start(command, chosen, values=values, late_events=late_events)


def run(arguments: Sequence[str]) -> int:
    """Run the command; an exit code where it cannot be started, errors in a line or two."""
    try:
        main.main(args=list(arguments), prog_name="dry_cuda", standalone_mode=False)
    except SchedsimError as error:
        return _fail(error.message, error.hint)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        return _fail(error.format_message(), "see python -m schedsim.validation.dry_cuda --help")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror}", "check the command")
    return 0


def _fail(message: str, hint: str) -> int:
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)
    return USAGE


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
