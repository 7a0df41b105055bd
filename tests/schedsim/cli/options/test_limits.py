"""``--capacity POOL=SIZE``: what is taken, and what is refused."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from schedsim.cli.options.limits import budget_option, capacity_option
from schedsim.errors import SchedsimError


@click.command()
@capacity_option
@budget_option(required=False)
def command(capacities, budget):
    """Says what it was given."""
    click.echo(repr((capacities, budget)))


def called(*arguments):
    """What the command says."""
    found = CliRunner().invoke(command, arguments, catch_exceptions=False)
    return found.output.strip()


def test_pools_with_their_sizes():
    """As often as there are pools; None where none is limited. A budget may be a share."""
    assert called("--capacity", "host=64GiB", "--capacity", "device=1000") == repr(
        ({"host": 64 * 2**30, "device": 1000}, None)
    )
    assert called("--mem", "60%") == "(None, '60%')"


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["64GiB"], "no pool and size"),
        (["=64GiB"], "no pool and size"),
        (["host=64Gb"], "--capacity host=64Gb"),
        (["host=1GB", "host=2GB"], "given twice"),
    ],
)
def test_refusals(texts, says):
    """With what was typed."""
    with pytest.raises(SchedsimError, match=says):
        called(*[word for text in texts for word in ("--capacity", text)])
