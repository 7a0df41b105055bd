"""The command group: commands imported when called, and one way for every error to end."""

from __future__ import annotations

import difflib
import errno
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from .. import kernels
from ..errors import (
    InfeasibleBudgetError,
    InvalidScheduleError,
    InvalidWorkloadError,
    SchedsimError,
    did_you_mean,
)
from .errors_of_models import place_in_model
from .help import GroupedCommand

COMMANDS = (
    "plan",
    "simulate",
    "compare",
    "estimate",
    "sweep",
    "explain",
    "pipeline",
    "cluster",
    "plot",
    "report",
    "export",
    "profile",
    "validate",
    "planners",
    "env",
    "completion",
)

YES, NO, USAGE, INTERRUPTED, BUG = 0, 1, 2, 130, 70


class SuggestingGroup(click.Group):
    """A group that answers an unknown command with the nearest known one."""

    command_class = GroupedCommand

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command as click does; the error for an unknown command has a hint."""
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-"):
            raise SchedsimError(
                f"unknown command {name!r}",
                hint=did_you_mean(name, known, f"one of {', '.join(known)}"),
            )
        return super().resolve_command(ctx, args)


class LazyGroup(SuggestingGroup):
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


def _show_version(ctx: click.Context, _option: click.Parameter, asked: bool) -> None:
    """Print the version that runs; in a checkout that of the checkout, even if one is installed."""
    if asked:
        import schedsim

        click.echo(f"schedsim {schedsim.__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    subcommand_metavar="COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Sizes: 8GB is 8 * 10^9 bytes, 8GiB is 8 * 2^30. "
    "Exit codes: 0 success, 1 infeasible or mismatch, 2 wrong usage or a bad file, "
    "70 a bug of schedsim, 130 interrupted.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
@click.pass_context
def cli(ctx: click.Context) -> int:
    """Decide which activations of a training step to keep or recompute.

    \b
    schedsim plan --layers 96 --mem 8GB            a formula: no GPU, no model
    schedsim plan chain.json --mem 24GiB           a chain from a file
    schedsim compare --preset gpt2-xl --mem 10GB   every planner on it
    schedsim validate my_model.py:build plan.json  a real model: predicted, measured
    """
    return help_without_command(ctx)


def help_without_command(ctx: click.Context) -> int:
    """A group without a command shows its help, as a usage error."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
    return USAGE


def run(arguments: Sequence[str]) -> int:
    """Run the command line; the exit code. Errors go to stderr, a line each."""
    kernels.on_command_line = True
    _log_to_stderr()
    try:
        result = cli.main(
            args=list(arguments), prog_name="schedsim", standalone_mode=False, obj=list(arguments)
        )
        sys.stdout.flush()
        return result if isinstance(result, int) else YES
    except (InvalidScheduleError, InfeasibleBudgetError) as error:
        return _fail(error.message, error.hint or _see_command(arguments), NO)
    except InvalidWorkloadError as error:
        return _fail(error.message, error.hint or _SEE_FORMATS, USAGE)
    except SchedsimError as error:
        return _fail(error.message, error.hint or _see_command(arguments), USAGE)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.NoSuchOption as error:
        return _fail(f"no such option {error.option_name}", _nearest_option(error), USAGE)
    except click.UsageError as error:
        return _fail(_from_click(error), _see_help(error), USAGE)
    except click.ClickException as error:
        return _fail(_from_click(error), _see_command(arguments), USAGE)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", "", INTERRUPTED)
    except (BrokenPipeError, SystemExit):
        # The reader closed the pipe (click itself exits then); keep the interpreter from
        # complaining at exit.
        _drop_results()
        return YES
    except OSError as error:
        where = error.filename or ("" if _results_can_be_written() else "standard output")
        what = f"{where}: {error.strerror or error}" if where else str(error.strerror or error)
        return _fail(what, _FULL if error.errno in _FULL_ERRORS else "check the path", USAGE)
    except Exception as error:
        if os.environ.get("SCHEDSIM_DEBUG"):
            raise
        what = _one_line(f"{type(error).__name__}: {error}")
        place = place_in_model(error)
        if place is not None:
            where = f" at {place}" if place else ""
            return _fail(f"the model or its loss fails{where}: {what}", _SEE_MODEL, USAGE)
        return _fail(
            f"internal: {what}", "this is a bug; SCHEDSIM_DEBUG=1 shows the traceback", BUG
        )


_BREAKS = str.maketrans({"\n": "\\n", "\r": "\\r"})
_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SEE_MODEL = "one step of it must run by itself; SCHEDSIM_DEBUG=1 shows the traceback"
_FULL = "free some space, or write to another place"


def _drop_results() -> None:
    """Send what is left of the results nowhere: else the interpreter complains at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _results_can_be_written() -> bool:
    """Whether standard output takes what it has not written yet."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop_results()
        return False
    return True


def _log_to_stderr() -> None:
    """Log the progress of long searches to stderr, where ``SCHEDSIM_LOG=info`` asks for it."""
    level = os.environ.get("SCHEDSIM_LOG", "").upper()
    if level in logging.getLevelNamesMapping():
        logging.basicConfig(level=level, format="%(asctime)s %(name)s %(message)s")


def _nearest_option(error: click.NoSuchOption) -> str:
    known = [name for param in error.ctx.command.params for name in param.opts] if error.ctx else []
    near = difflib.get_close_matches(error.option_name, known, n=1)
    return f"did you mean {near[0]}?" if near else _see_help(error)


_SEE_FORMATS = "docs/guide.md, 'What is modelled', shows what such a file holds"


def _see_command(arguments: Sequence[str]) -> str:
    """The hint for errors whose message says enough: where to read about the command."""
    known = arguments and arguments[0] in COMMANDS
    return f"see schedsim {arguments[0]} --help" if known else "see schedsim --help"


def _see_help(error: click.UsageError) -> str:
    return f"see {error.ctx.command_path if error.ctx else 'schedsim'} --help"


def _from_click(error: click.ClickException) -> str:
    """A message of click in schedsim's form: one line, no capital, no full stop."""
    text = _one_line(error.format_message()).removesuffix(".")
    return text[:1].lower() + text[1:]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _fail(message: str, hint: str, code: int) -> int:
    # What the user typed stands in messages, and may hold a line break.
    click.echo(f"error: {message.translate(_BREAKS)}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)
    return code
