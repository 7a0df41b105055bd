"""``--allocator`` and ``--alloc-conf``: what they mean, and what has no meaning."""

from __future__ import annotations

import click
import pytest

from schedsim.cli.options.allocator_options import allocator_options, read_options
from schedsim.errors import SchedsimError


@pytest.mark.parametrize(
    ("conf", "options"),
    [
        (None, {}),
        ("", {}),
        ("expandable_segments:True", {"expandable_segments": True}),
        ("expandable_segments:False", {}),
        (
            "max_split_size_mb:64,roundup_power2_divisions:8",
            {"max_split_bytes": 64 << 20, "roundup_power2_divisions": 8},
        ),
    ],
)
def test_settings_become_options(conf, options):
    """Only those that change something, so that a plan file has no defaults in it."""
    assert read_options("cuda-caching", conf) == options


@pytest.mark.parametrize("allocator", [None, "exact", "best-fit"])
def test_settings_of_another_allocator_are_refused(allocator):
    """Also empty ones: they were given."""
    for conf in ("expandable_segments:True", ""):
        with pytest.raises(SchedsimError, match="--alloc-conf belongs to --allocator cuda-caching"):
            read_options(allocator, conf)
    assert read_options(allocator, None) == {}


def test_both_are_options_of_a_command():
    """An allocator that there is, or exact."""

    @click.command()
    @allocator_options
    def command(allocator, alloc_conf):
        return allocator, alloc_conf

    def call(*words):
        return command.main(list(words), standalone_mode=False)

    assert call() == (None, None)
    assert call("--allocator", "exact", "--alloc-conf", "x") == ("exact", "x")
    assert call("--allocator", "first-fit")[0] == "first-fit"
    with pytest.raises(click.BadParameter, match="buddy"):
        call("--allocator", "buddy")
