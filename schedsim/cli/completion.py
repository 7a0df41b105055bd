"""``schedsim completion``: the script with which a shell completes commands, names and files."""

from __future__ import annotations

import click

from .app import YES
from .help import GroupedCommand

SHELLS = ("bash", "zsh", "fish")


@click.command(
    "completion", cls=GroupedCommand, short_help="Shell completion: a script for bash, zsh or fish."
)
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> int:
    """Print the script that makes SHELL complete commands, options, planners, presets and files.

    \b
    eval "$(schedsim completion bash)"                                        # in ~/.bashrc
    eval "$(schedsim completion zsh)"                                         # in ~/.zshrc
    schedsim completion fish > ~/.config/fish/completions/schedsim.fish
    """
    from click.shell_completion import get_completion_class

    from .app import cli

    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(cli, {}, "schedsim", "_SCHEDSIM_COMPLETE").source())
    return YES
