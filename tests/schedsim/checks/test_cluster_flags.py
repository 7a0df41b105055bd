"""Options are called as the command line calls them."""

from dataclasses import fields

import click

from schedsim.checks.cluster_flags import flag_of
from schedsim.cli.cluster import command
from schedsim.clusters import Degrees, Training

PYTHON_ONLY = {"async_tensor", "held_logits", "wide_logits", "libraries"}


def test_every_setting_and_degree_has_the_flag_of_its_name():
    """So an error that names one names what can be typed."""
    options = {one.name: one.opts[0] for one in command.params if isinstance(one, click.Option)}
    for one in (*fields(Degrees), *fields(Training)):
        if one.name in PYTHON_ONLY:
            assert one.name not in options
        else:
            assert options[one.name] == flag_of(one.name)
