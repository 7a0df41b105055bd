"""What was planned for a step, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from schedsim.units import format_bytes

from ..compiled.group_sizes import GroupSize
from .parts.part_sizes import Binding
from .parts.traced_part import TracedPart
from .records.step_record import Key

_MOST_SIZES = 4
"""Sizes that the report names."""


def describe_calls(
    parts: Sequence[TracedPart],
    numbers: Mapping[Key, int],
    planned_for: Callable[[Key], Binding] = lambda _: (),
) -> list[str]:
    """A line for each call: what it keeps, and what its recomputation costs.

    Parameters
    ----------
    numbers
        The number of the schedule of each call.
    planned_for
        The open sizes that a call was planned for.
    """
    counted = Counter(index for index, _ in numbers)
    lines = []
    for key, number in numbers.items():
        part, binding = parts[key[0]], planned_for(key)
        cost = part.cost(number, binding)
        plain = sum(op.time_s for op in part.graph.ops)
        extra = f"{cost.time_s / plain - 1:+.2%}" if plain else ""
        place = f", call {key[1] + 1} of {counted[key[0]]}" if counted[key[0]] > 1 else ""
        lines.append(
            f"  {part.name}{place}: keeps {format_bytes(cost.kept_bytes)}, time {extra}"
            + part.sizes.in_words(binding)
            + ("" if part.group_size is GroupSize.LARGE else ", groups are small")
        )
    return lines


def describe_checks(parts: Sequence[TracedPart], note: str, num_steps: int = 0) -> str:
    """What was compared with the plain step.

    Parameters
    ----------
    note
        How the first step compared.
    num_steps
        Number of steps of the loop that were compared.
    """
    compared = sum(part.trust.num_compared for part in parts)
    later = f"; then {compared} times a new schedule with another" if compared else ""
    if num_steps:
        later += f"; {num_steps} times a step of the loop with the plain one"
    lines = [f"  check          {note}{later}"]
    for part in parts:
        if not part.sizes.names or not part.trust.compared_at:
            continue
        sizes = part.sizes.in_words(*part.trust.compared_at[:_MOST_SIZES])
        others = part.trust.num_sizes_uncompared
        lines.append(
            f"                 {part.name}: schedules were compared{sizes}"
            + (" and others" if len(part.trust.compared_at) > _MOST_SIZES else "")
            + (f"; the same code ran at {others} sizes at which it was not" if others else "")
        )
    return "\n".join(lines)
