"""``--memory-level``, and what a plan that checkpoints to several levels says of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ..dataflow.chain import Chain
from ..dataflow.copies import copies_in, pool_of_level
from ..errors import SchedsimError
from ..plans.levels import MemoryLevel
from ..plans.plan import Plan
from ..simulation.simulator import Simulation
from ..units import format_bytes, format_seconds

if TYPE_CHECKING:
    from ..dataflow.graph import Graph

_FLAG = "--memory-level"


def level_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--memory-level``, as often as there are levels."""
    return click.option(
        _FLAG,
        "memory_levels",
        multiple=True,
        metavar="LEVEL",
        help="Below the device (hrevolve): SLOTS:WRITE_S:READ_S, or SLOTS@LINK, as all@pcie4.",
    )(function)


def take_levels(more: dict[str, Any], planner: str, workload: Chain | Graph) -> dict[str, Any]:
    """Takes the levels out of `more`, as options of the planner; empty where none are given."""
    from ..algorithms import PLANNERS, get_planner

    texts = more.pop("memory_levels")
    if not texts:
        return {}
    if "levels" not in get_planner(planner).options():
        able = [name for name, info in PLANNERS.items() if "levels" in info.options()]
        raise SchedsimError(
            f"planner {planner!r} does not take {_FLAG}", hint=f"--planner {able[0]} does"
        )
    if not isinstance(workload, Chain):
        raise SchedsimError(f"{_FLAG} is of a chain, and {workload.name} is a graph")
    largest = int(workload.activation_bytes()[:-1].max())
    num = workload.num_stages
    levels = [
        MemoryLevel.parse(text, checkpoint_bytes=largest, num_checkpoints=num) for text in texts
    ]
    return {"levels": levels}


def level_words(options: dict[str, Any]) -> list[str]:
    """The arguments that give the levels again, for a shell."""
    words = []
    for level in options.get("levels", ()):
        words += [_FLAG, f"{level.num_slots}:{level.write_s!r}:{level.read_s!r}"]
    return words


def level_facts(plan: Plan, simulation: Simulation) -> list[tuple[str, str]]:
    """Lines of a report: what each level holds, and the time were copies to stop computation."""
    found = plan.setting.levels
    if found is None or not found.levels:
        return []
    facts = []
    copies = copies_in(simulation.run_names)
    for number, level in found.numbered:
        here = [copy for copy in copies if copy.level == number]
        reads = sum(copy.back for copy in here)
        writes = len(here) - reads
        peak = simulation.peak_by_pool.get(pool_of_level(number), 0)
        facts.append(
            (
                f"level {number}",
                f"{level.num_slots} slots, {writes} writes of {format_seconds(level.write_s)}, "
                f"{reads} reads of {format_seconds(level.read_s)}, {format_bytes(peak)} at most",
            )
        )
    together = format_seconds(float(plan.search.figures["synchronous_s"] or 0.0))
    facts.append(("one at a time", f"{together}, were copies to stop the computation"))
    return facts
