"""Output about a plan that checkpoints to several memory levels."""

from __future__ import annotations

from ...dataflow.copies import copies_in, pool_of_level
from ...plans.plan import Plan
from ...simulation.simulator import Simulation
from ...units import format_bytes, format_seconds


def level_facts(plan: Plan, simulation: Simulation) -> list[tuple[str, str]]:
    """Lines of the output: what each level holds, and the time if copies stopped computation."""
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
    together = plan.search.figures.get("synchronous_s")
    if isinstance(together, int | float):  # a planner of another package may lack this figure
        text = f"{format_seconds(float(together))}, were copies to stop the computation"
        facts.append(("one at a time", text))
    return facts
