"""H-Revolve 2020: levels of storage, copies in line with the steps or beside them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from _claims import Claim, Instances, Source, main
from _common import num_forward_runs, unit_chain
from schedsim.algorithms.chains.hrevolve import HRevolve
from schedsim.algorithms.chains.revolve import num_forwards

from schedsim.api import try_plan
from schedsim.plans.links import Link

SOURCE = Source(
    title="Herrmann & Pallez 2020, H-Revolve",
    what="costs with a disk against the published program; levels and prices; copies beside steps",
)
BUNDLE = 10_000
BUILT_IN = "The recurrence is a minimum over more choices."
# Steps, slots in memory, cost of a write and of a read -> cost, one a step and one a backward, by
# the published program's successor (checkpoint_schedules 1.0.4, HRevolve, ten slots on disk).
PUBLISHED = {
    (20, 2, 0): 66, (20, 2, 2): 90, (20, 2, 5): 100,
    (20, 3, 0): 65, (20, 3, 2): 83, (20, 3, 5): 85,
    (50, 3, 0): 185, (50, 3, 2): 225, (50, 3, 5): 250,
}  # fmt: skip


@cache
def least(num: int, slots: int, write_s: float, read_s: float, disk_slots: int = 10) -> float:
    """The recurrence: memory that is free, and a disk; one a step and one a backward."""
    return HRevolve.solve(num, 1.0, 2.0, [slots, disk_slots], [0, write_s], [0, read_s]).time_s


@cache
def alone(num: int, slots: int) -> float:
    """With memory alone."""
    return HRevolve.solve(num, 1.0, 2.0, [slots], [0.0], [0.0]).time_s


@cache
def replayed(num: int, slots: int, copy_s: float) -> tuple[float, float]:
    """(time with copies waited for, time of the same schedule replayed with copies beside)."""
    chain = unit_chain(num, backward_s=1.0)
    plan = try_plan(chain, 10**6, "hrevolve", num_slots=slots, levels=[(10, copy_s, copy_s)])
    assert plan.makespan_s is not None
    return plan.search.figures["synchronous_s"], plan.makespan_s


@cache
def annealed(num: int, slots: int, copy_s: float) -> float:
    """Time of the planner that offloads, in the memory of one bundle and so many states."""
    chain = unit_chain(num, backward_s=1.0, saved_bytes=BUNDLE)
    # Room for one bundle, its input, two gradients and the slots; a state is a byte.
    plan = try_plan(
        chain,
        BUNDLE + 1 + 2 + slots,
        "offload",
        link=Link(1 / copy_s),
        max_moves=20_000,
        num_threads=1,
        time_limit_s=4,
    )
    assert plan.makespan_s is not None
    return plan.makespan_s


def claims(instances: Instances) -> Iterator[Claim]:
    for num, slots in ((20, 2), (100, 8)):
        chain = unit_chain(num)
        plan = try_plan(chain, 10**6, "hrevolve", num_slots=slots)
        assert plan.schedule is not None
        yield Claim(
            what=f"one free level is revolve: forwards of {num} steps, {slots} slots",
            claimed=num_forwards(num, slots) + num,
            ours=num_forward_runs(plan.schedule, chain),
            seen="code",
        )
    for (num, slots, copy_s), cost in PUBLISHED.items():
        yield Claim(
            what=f"{num} steps, {slots} slots, ten on disk at {copy_s} a copy: cost",
            claimed=cost,
            ours=least(num, slots, copy_s, copy_s),
            seen="code",
        )
    raised = falls = 0
    prices = (0.0, 0.5, 1.0, 2.0, 5.0, 20.0)
    for num, slots, price in ((n, c, p) for n in (5, 20, 60) for c in (1, 2, 5) for p in prices):
        cost = least(num, slots, price, price)
        raised += cost > alone(num, slots)
        falls += least(num, slots, price + 1, price) < cost
        falls += least(num, slots, price, price + 1) < cost
        falls += least(num, slots, price, price, 5) < cost
    yield Claim(
        what="three lengths, 1 to 5 slots, six prices: where a disk raises the cost",
        claimed=0,
        ours=raised,
        seen="formula",
        check=BUILT_IN,
    )
    yield Claim(
        what="the same: where dearer writes, dearer reads or fewer slots lower the cost",
        claimed=0,
        ours=falls,
        seen="formula",
        check=BUILT_IN,
    )
    for num, slots, copy_s in ((20, 2, 2.0), (50, 3, 2.0), (50, 3, 5.0)):
        waited, beside = replayed(num, slots, copy_s)
        yield Claim(
            what=f"{num} steps, {slots} slots: the schedule's own time, copies of {copy_s:g} "
            "waited for",
            claimed=PUBLISHED[num, slots, int(copy_s)],
            ours=waited,
            seen="code",
        )
        yield Claim(
            what="the same schedule replayed, copies beside the steps",
            claimed=waited,
            ours=beside,
            relation="at most",
            seen="formula",
            check="Copies beside steps end no later than copies waited for.",
        )
    for num, slots, copy_s in ((20, 2, 2.0), (20, 2, 5.0), (20, 3, 5.0)):
        yield Claim(
            what=f"{num} steps, {slots} slots, copies of {copy_s:g}: the planner that offloads",
            claimed=PUBLISHED[num, slots, int(copy_s)],
            ours=annealed(num, slots, copy_s),
            relation="at most",
            seen="code",
            why="Theirs waits for each copy and has ten slots on disk; ours copies beside the "
            "steps, to a host without limit.",
        )


def figure(page, instances: Instances) -> None:
    axes = page.add_subplot()
    prices = [0, 0.5, 1, 2, 3, 5, 8, 12, 20]
    for slots in (2, 3, 5):
        costs = [least(50, slots, float(price), float(price)) for price in prices]
        (drawn,) = axes.plot(prices, costs, "o-", label=f"{slots} slots and ten on disk")
        axes.axhline(alone(50, slots), ls=":", color=drawn.get_color())
    axes.set(xlabel="price of a copy, in steps", ylabel="cost of 50 steps (dotted: memory alone)")
    axes.legend()


if __name__ == "__main__":
    main(__file__, SOURCE, claims, figure)
