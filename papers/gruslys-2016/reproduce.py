"""Gruslys et al. 2016: back-propagation through time in little memory, two kinds of slot."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _claims import Claim, Instances, Source, main
from _common import num_forward_runs, unit_chain
from schedsim.algorithms.chains.revolve import revolve_schedule

import schedsim

SOURCE = Source(
    title="Gruslys, Munos, Danihelka, Lanctot, Graves 2016, Memory-efficient BPTT",
    what="both recurrences at 1000 steps; 95 % of memory for a third more time",
)
STEPS = 1000
INTERNAL = {5: 6292, 10: 3640, 20: 2750, 32: 2408, 44: 1956, 50: 1950, 100: 1900}
HIDDEN = {5: 7284, 10: 4636, 20: 3747, 50: 2948, 100: 2898}
READING = (
    "The recurrences are from memory, and that the abstract means slots of internal states and "
    "b = 2 f is our reading."
)


@cache
def recurrence(internal: bool) -> np.ndarray:
    """Least forwards, ``[slots, steps]``, saving forwards included.

    Hidden states: y + C(t - y, m - 1) + C(y, m) for 1 <= y < t; internal states, with which a step
    need not be run again: y + D(t - y, m - 1) + D(y - 1, m) for 1 <= y <= t.
    """
    slots = max(INTERNAL)
    steps = np.arange(STEPS + 1)
    table = np.zeros((slots + 1, STEPS + 1), dtype=np.int64)
    table[1] = steps * (steps + 1) // 2
    for m in range(2, slots + 1):
        table[m, 1] = 1
        for t in range(2, STEPS + 1):
            y = steps[1 : t + 1] if internal else steps[1:t]
            left = table[m, y - 1] if internal else table[m, y]
            table[m, t] = (y + table[m - 1, t - y] + left).min()
    return table


@cache
def planned_forwards(slots: int) -> int:
    """Forwards of the optimal persistent plan of a chain whose output is its whole state.

    Besides the slots it holds the chain's input and two gradients.
    """
    chain = unit_chain(STEPS)
    plan = schedsim.plan(chain, slots + 3, "rotor")
    assert plan.schedule is not None
    return num_forward_runs(plan.schedule, chain)


def claims(instances: Instances) -> Iterator[Claim]:
    for slots, forwards in INTERNAL.items():
        yield Claim(
            what=f"internal states: forwards of 1000 steps, {slots} slots, recurrence",
            claimed=forwards,
            ours=float(recurrence(True)[slots, STEPS]),
            seen="formula",
        )
    yield Claim(
        what="the same, 50 slots, as the optimal plan of a chain, replayed",
        claimed=INTERNAL[50],
        ours=planned_forwards(50),
        seen="formula",
        why="The backward of a stage of ours reads its input and its output, two slots; theirs "
        "reads one internal state.",
    )
    for slots, forwards in HIDDEN.items():
        yield Claim(
            what=f"hidden states: forwards of 1000 steps, {slots} slots, replayed",
            claimed=forwards,
            ours=num_forward_runs(revolve_schedule(STEPS, slots), unit_chain(STEPS)),
            seen="formula",
        )
    yield Claim(
        what="hidden states: the recurrence is the binomial optimum, 50 slots",
        claimed=HIDDEN[50],
        ours=float(recurrence(False)[50, STEPS]),
        seen="formula",
    )
    yield Claim(
        what="time with 50 of 1000 slots (95 % of memory saved), internal states, b = 2 f",
        claimed=4 / 3,
        ours=(planned_forwards(50) + 2 * STEPS) / (3 * STEPS),
        within=0.02,
        seen="abstract",
        why=READING,
    )
    runs = num_forward_runs(revolve_schedule(STEPS, 50), unit_chain(STEPS))
    yield Claim(
        what="the same with hidden states",
        claimed=4 / 3,
        ours=(runs + 2 * STEPS) / (3 * STEPS),
        within=0.02,
        seen="abstract",
        why="With slots of hidden states every step is run again for its tape: 65 % more time.",
    )


def figure(page, instances: Instances) -> None:
    axes = page.add_subplot()
    slots = np.arange(3, 101)
    for internal, name in ((True, "internal states"), (False, "hidden states")):
        forwards = recurrence(internal)[slots, STEPS]
        axes.plot(slots, (forwards + 2 * STEPS) / (3 * STEPS), label=name)
    axes.axhline(4 / 3, ls="--", color="grey", label="a third more time")
    axes.set(xlabel="slots, of 1000 steps", ylabel="time, of store-all", ylim=(1, 4))
    axes.legend()


if __name__ == "__main__":
    main(__file__, SOURCE, claims, figure)
