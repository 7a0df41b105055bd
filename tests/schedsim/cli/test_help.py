"""Help in groups: every option of every command, once, under a title that says what it is about."""

from __future__ import annotations

import re

import click
import pytest

from schedsim.cli.app import cli, run
from schedsim.cli.help import GROUPS, GroupedCommand, group_of


def commands() -> dict[str, click.Command]:
    """Every command by its words, those of groups too."""
    found: dict[str, click.Command] = {}

    def walk(command: click.Command, words: tuple[str, ...]) -> None:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                walk(inner, (*words, name))
        else:
            found[" ".join(words)] = command

    walk(cli, ())
    return found


COMMANDS = commands()
# Options of one command alone, which need no title of their own.
OWN = {
    "top",
    "target",
    "version",
    "listing",
    "num_jobs",
    "backend",
    "address",
    "retry_errors",
    "dry_run",
}


@pytest.mark.parametrize("words", COMMANDS)
def test_every_option_is_shown_once_in_its_group(capsys, words):
    """None is lost, none shown twice, and every long one is under the title it belongs to."""
    assert isinstance(COMMANDS[words], GroupedCommand)
    assert run([*words.split(), "--help"]) == 0
    section, shown = "", []
    for line in capsys.readouterr().out.splitlines():
        if title := re.fullmatch(r"(\S.*):", line):
            section = title[1]
        elif section and (option := re.match(r"  (?:-\w, )?(--[\w-]+)", line)):
            shown.append((option[1], section))
    params = [p for p in COMMANDS[words].params if isinstance(p, click.Option)]
    long = {p: next(name for name in p.opts if name.startswith("--")) for p in params}
    expected = [(long[p], group_of(p.name or "")) for p in params] + [("--help", "Output")]
    assert sorted(shown) == sorted(expected)


def test_groups_come_in_one_order_everywhere(capsys):
    """The budget first, the output last, as in `GROUPS`."""
    for words in COMMANDS:
        assert run([*words.split(), "--help"]) == 0
        titles = re.findall(r"^(\S.*):$", capsys.readouterr().out, re.MULTILINE)
        known = [title for title in titles if title in GROUPS]
        assert known == [title for title in GROUPS if title in known]
        assert titles[-1] == "Output"


def test_only_few_options_have_no_group():
    """A new option of several commands is given a place."""
    names = {
        param.name
        for command in COMMANDS.values()
        for param in command.params
        if isinstance(param, click.Option) and group_of(param.name or "") == "Options"
    }
    assert names <= OWN


def test_no_option_is_in_two_groups():
    """A table without repeats."""
    names = [name for group in GROUPS.values() for name in group]
    assert len(names) == len(set(names))
