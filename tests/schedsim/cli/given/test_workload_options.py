"""File arguments and formula options become a source, and no output is an input."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from schedsim.cli.given.workload_options import workload_options
from schedsim.cli.given.workload_source import Source
from schedsim.cli.options.formula import flags
from schedsim.errors import SchedsimError


@click.command()
@click.option("-o", "output")
@workload_options
def command(source: Source, output: str | None) -> Source:
    return source


def read(line: str) -> Source:
    found = command.main(line.split(), standalone_mode=False)
    assert isinstance(found, Source)
    return found


def test_nothing_given_is_nothing():
    """Every field of the formula is there, and empty."""
    source = read("")
    assert (source.files, source.given, source.level) == ((), {}, None)
    assert set(source.options) == set(flags())


def test_files_and_options_with_their_types():
    """Switches, sizes, words in the place of a size."""
    source = read("a.json b.json --layers 4 --efficiency 0.5 --head --static 1GiB --level op")
    assert source.files == ("a.json", "b.json")
    assert source.given == {"layers": 4, "efficiency": 0.5, "head": True, "static": 2**30}
    assert source.level == "op"
    assert read("--static auto --layers 2").given == {"static": "auto", "layers": 2}


@pytest.mark.parametrize("line", ["--layers x", "--static 8Gb", "--seed 1.5", "--nothing 3"])
def test_values_of_another_type_are_refused(line):
    """By click, or by the size itself."""
    with pytest.raises((click.UsageError, SchedsimError)):
        read(line)


@pytest.mark.parametrize(
    ("line", "clashes"),
    [
        ("a.json -o a.json", True),
        ("a.json -o ./a.json", True),
        ("a.json -o folder/../a.json", True),
        ("a.json b.json -o b.json", True),
        ("--layers 3 --times t.json -o t.json", True),
        ("--layers 3 --device mine.json -o mine.json", True),
        ("--preset hf:config.json -o config.json", True),
        ("model.py:build,layers=4 -o model.py", True),
        ("model.py -o model.py", True),
        ("--preset gpt2 --device h100 -o gpt2", False),
        ("--preset gpt2 --device h100 -o h100", False),
        ("a.json -o b.json", False),
        ("-o a.json", False),
    ],
)
def test_an_output_that_is_an_input(tmp_path, monkeypatch, line, clashes):
    """However it is written; nothing is read or written to find that out."""
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    if not clashes:
        read(line)
        return
    with pytest.raises(SchedsimError, match="would overwrite an input") as caught:
        read(line)
    assert caught.value.hint == "name another file"
