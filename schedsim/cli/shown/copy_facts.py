"""Output about a plan's copies to host memory, and the link."""

from __future__ import annotations

from ...dataflow.copies import copies_in
from ...plans.offloading import Offloading
from ...simulation.simulator import Simulation
from ...units import format_bytes, format_bytes_short, format_seconds

# Number of offloaded tensors to name, the largest first.
_NAMED = 6


def copy_facts(simulation: Simulation, offloading: Offloading) -> list[tuple[str, str]]:
    """Lines of the output: what is offloaded, how busy the link is, and how long ops wait."""
    out = [copy.tensor for copy in copies_in(simulation.run_names) if not copy.back]
    if not out:
        return [("offloaded", "nothing: the link does not help here")]
    sizes = _sizes(simulation)
    moved = {name: sizes[name] for name in out}
    largest = sorted(moved, key=lambda name: -moved[name])
    more = f", and {len(largest) - _NAMED} more" if len(largest) > _NAMED else ""
    busy, total = simulation.busy_s, simulation.makespan_s
    shares = [
        f"{name} {busy.get(name, 0.0) / total:.0%}".replace("%", " %") for name in ("d2h", "h2d")
    ]
    exposed = max(0.0, total - busy["compute"])
    host = format_bytes(simulation.peak_by_pool.get("host", 0))
    limit = offloading.host_bytes
    return [
        (
            "offloaded",
            f"{len(moved)} tensors, {format_bytes_short(sum(moved.values()))}: "
            f"{', '.join(largest[:_NAMED])}{more}",
        ),
        ("host memory", host if limit is None else f"{host} of {format_bytes(limit)}"),
        ("link busy", f"{', '.join(shares)} of the step, at {offloading.d2h} and {offloading.h2d}"),
        (
            "exposed",
            f"{format_seconds(exposed)} without an op running, "
            f"{exposed / total:.2%} of the step".replace("%", " %"),
        ),
    ]


def _sizes(simulation: Simulation) -> dict[str, int]:
    arrays = simulation._graph.arrays
    return dict(zip(arrays.tensor_names, arrays.tensor_bytes.tolist(), strict=True))
