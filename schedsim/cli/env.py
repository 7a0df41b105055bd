"""``schedsim env``: versions and machine, for bug reports."""

from __future__ import annotations

import importlib.metadata
import os
import platform

import click

from ..units import format_bytes
from .app import YES
from .help import GroupedCommand
from .options.files import json_option
from .show import print_facts, print_json

PACKAGES = ("schedsim", "numpy", "scipy", "numba", "matplotlib", "click", "rich", "joblib")
OPTIONAL = ("torch", "ortools")


@click.command(
    "env", cls=GroupedCommand, short_help="Versions of everything involved, and the machine."
)
@json_option
def command(as_json: bool) -> int:
    """Show versions of everything involved, and the machine.

    \b
    schedsim env
    """
    facts = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": str(os.cpu_count()),
        "memory": _memory(),
    }
    for package in (*PACKAGES, *OPTIONAL):
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            facts[package] = "not installed (optional)" if package in OPTIONAL else "not installed"
    if as_json:
        print_json({"schema": "schedsim.env/1", **facts})
    else:
        print_facts(list(facts.items()))
    return YES


def _memory() -> str:
    try:
        return format_bytes(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # not every system tells
        return "unknown"
