"""The command group: lazy commands, and one way for every error to end."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from ..errors import InvalidScheduleError, SchedsimError

COMMANDS = ("plan", "simulate", "compare", "plot", "planners", "env")

YES, NO, USAGE, INTERRUPTED, BUG = 0, 1, 2, 130, 70


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called or described."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, from the module of its name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f".{cmd_name}", __package__).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but an unknown command gets its nearest neighbour."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = difflib.get_close_matches(name, COMMANDS, n=1)
            raise SchedsimError(
                f"unknown command {name!r}",
                hint=f"did you mean {near[0]!r}?" if near else f"one of {', '.join(COMMANDS)}",
            )
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Sizes: 8GB is 8 * 10^9 bytes, 8GiB is 8 * 2^30. "
    "Exit codes: 0 yes, 1 no (infeasible, mismatch), 2 usage or a bad file, 130 interrupted.",
)
@click.version_option(package_name="schedsim", message="%(prog)s %(version)s")
def cli() -> None:
    """Decide which activations of a training step to keep or recompute.

    \b
    schedsim plan --layers 96 --mem 8GB            a formula: no GPU, no model
    schedsim plan chain.json --mem 24GiB           a chain from a file
    schedsim compare --preset gpt2-xl --mem 10GB   every planner on it
    """


def run(arguments: Sequence[str]) -> int:
    """Run the command line; the exit code. Errors go to stderr, a line each."""
    try:
        result = cli.main(args=list(arguments), prog_name="schedsim", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else YES
    except InvalidScheduleError as error:
        return _fail(error.message, error.hint, NO)
    except SchedsimError as error:
        return _fail(error.message, error.hint, USAGE)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "schedsim"
        return _fail(_one_line(error.format_message()), f"see {command} --help", USAGE)
    except click.ClickException as error:
        return _fail(_one_line(error.format_message()), "", USAGE)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", "", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read us has enough; keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return YES
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", "check the path", USAGE)
    except Exception as error:
        if os.environ.get("SCHEDSIM_DEBUG"):
            raise
        what = _one_line(f"{type(error).__name__}: {error}")
        return _fail(
            f"internal: {what}", "this is a bug; SCHEDSIM_DEBUG=1 shows the traceback", BUG
        )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _fail(message: str, hint: str, code: int) -> int:
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)
    return code
