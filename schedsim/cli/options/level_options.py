"""``--memory-level``: memory levels below the device, for planners that checkpoint to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from ...algorithms import PLANNERS, get_planner
from ...dataflow.chain import Chain
from ...dataflow.graph import Graph
from ...errors import SchedsimError
from ...plans.levels import MemoryLevel

_FLAG = "--memory-level"


def level_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--memory-level``, which is repeated for each level."""
    return click.option(
        _FLAG,
        "memory_levels",
        multiple=True,
        metavar="LEVEL",
        help="Memory below the device (hrevolve): SLOTS:WRITE_S:READ_S, or SLOTS@LINK (all@pcie4).",
    )(function)


def check_levels(texts: Sequence[str], planner: str) -> None:
    """Refuse levels that `planner` does not take."""
    if texts and "levels" not in get_planner(planner).options():
        able = [name for name, info in PLANNERS.items() if "levels" in info.options()]
        raise SchedsimError(
            f"planner {planner!r} does not take {_FLAG}", hint=f"--planner {able[0]} does"
        )


def read_levels(texts: Sequence[str], workload: Chain | Graph) -> dict[str, Any]:
    """The levels as an option of the planner; empty where none are given.

    For a level given by its link, a slot holds the largest checkpoint of `workload`.
    """
    if not texts:
        return {}
    if not isinstance(workload, Chain):
        raise SchedsimError(f"{_FLAG} is for chains, and {workload.name} is a graph")
    largest = int(workload.activation_bytes()[:-1].max())
    num = workload.num_stages
    levels = [
        MemoryLevel.parse(text, checkpoint_bytes=largest, num_checkpoints=num) for text in texts
    ]
    return {"levels": levels}


def level_words(options: Mapping[str, Any]) -> list[str]:
    """The shell arguments that describe the levels."""
    words = []
    for level in options.get("levels", ()):
        words += [_FLAG, f"{level.num_slots}:{level.write_s!r}:{level.read_s!r}"]
    return words
