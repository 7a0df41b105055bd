"""Schedules with other repeated runs, against all that one swap makes."""

from __future__ import annotations

import itertools

import pytest
from repeated_runs import Row, random_chain, repeats_of

from schedsim import Schedule, simulate
from schedsim.allocators.fewer_repeats import without_runs
from schedsim.allocators.swapped_repeats import swapped_repeats
from schedsim.errors import InvalidScheduleError

NUM = 5
REPLAYING = (
    *(f"F{i}" for i in range(NUM)),
    "loss",
    f"B{NUM - 1}",
    *(name for i in range(NUM - 2, -1, -1) for name in (f"F{i}", f"B{i}")),
)


def row_of(chain, names):
    """A schedule with its time and bytes; ``None`` for one that is not legal."""
    try:
        found = simulate(chain, Schedule.from_names(names))
    except InvalidScheduleError:
        return None
    return Row(tuple(names), found.makespan_s), found.peak_bytes


def swapped_once(chain, names):
    """Every schedule with one or two repeats fewer, and with one run more, wherever it stands."""
    gone = repeats_of(names)
    for group in [(one,) for one in gone] + list(itertools.combinations(gone, 2)):
        base = without_runs(chain.graph, names, set(group))
        yield base
        for i, at in itertools.product(range(NUM), range(len(base) + 1)):
            yield (*base[:at], f"F{i}", *base[at:])


def searched(seed, share, most_tries=10**6):
    """The result from a replaying schedule, at a budget between it and store-all."""
    chain = random_chain(seed)
    given, least_bytes = row_of(chain, REPLAYING)
    _, most_bytes = row_of(chain, tuple(chain.op_names))
    budget, tried = least_bytes + int(share * (most_bytes - least_bytes)), []

    def fitting(names):
        tried.append(names)
        found = row_of(chain, names)
        return found[0] if found is not None and found[1] <= budget else None

    found = swapped_repeats(chain.graph, REPLAYING, given, fitting, most_tries)
    return chain, budget, given, found, tried


@pytest.mark.parametrize("seed", range(6))
def test_no_single_swap_is_faster_and_fits(seed):
    chain, budget, given, found, _ = searched(seed, 0.3)
    assert found.makespan_s <= given.makespan_s
    assert row_of(chain, found.names)[1] <= budget
    for names in swapped_once(chain, found.names):
        other = row_of(chain, names)
        assert other is None or other[1] > budget or other[0].makespan_s >= found.makespan_s - 1e-9


def test_some_swap_finds_what_leaving_out_runs_does_not():
    """On some chain, the result repeats a run that the given schedule does not repeat so often."""
    better = 0
    for seed in range(12):
        chain, budget, given, found, _ = searched(seed, 0.2)
        fewest = [
            row[0].makespan_s
            for count in range(NUM)
            for gone in itertools.combinations(repeats_of(REPLAYING), count)
            if (row := row_of(chain, without_runs(chain.graph, REPLAYING, set(gone)))) is not None
            and row[1] <= budget
        ]
        better += found.makespan_s < min(fewest, default=given.makespan_s) - 1e-9
    assert better > 0


def test_it_stops_after_so_many_tries():
    assert len(searched(0, 0.3, most_tries=3)[-1]) == 3
