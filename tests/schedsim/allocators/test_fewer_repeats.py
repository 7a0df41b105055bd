"""Schedules with fewer repeated runs, against all of them."""

from __future__ import annotations

import itertools

import pytest
from repeated_runs import Row, random_chain, repeats_of

import schedsim
from schedsim import Schedule, simulate
from schedsim.allocators.fewer_repeats import fewer_repeats, one_repeat_fewer, without_runs


def fitting_within(chain, budget, tried):
    """Of simulated bytes; an illegal schedule raises."""

    def fitting(names):
        tried.append(tuple(names))
        found = simulate(chain, Schedule.from_names(names))
        return Row(tuple(names), found.makespan_s) if found.peak_bytes <= budget else None

    return fitting


@pytest.mark.parametrize("seed", range(8))
def test_it_is_never_slower_and_misses_no_single_run(seed):
    """Every schedule tried is legal; with enough tries no single repeat can still be left out."""
    chain = random_chain(seed)
    names = tuple(schedsim.plan(chain, 2**40, "recompute_all").schedule.names)
    peaks = sorted(
        {
            simulate(
                chain, Schedule.from_names(without_runs(chain.graph, names, set(gone)))
            ).peak_bytes
            for num in range(5)
            for gone in itertools.combinations(repeats_of(names), num)
        }
    )
    for budget in peaks[:: max(1, len(peaks) // 6)]:
        tried = []
        fitting = fitting_within(chain, budget, tried)
        start = fitting(names)
        if start is None:
            continue
        found = fewer_repeats(chain.graph, names, start, fitting, 100)
        assert simulate(chain, Schedule.from_names(found.names)).peak_bytes <= budget
        assert found.makespan_s <= start.makespan_s
        for repeat in repeats_of(found.names):
            assert fitting(without_runs(chain.graph, found.names, {repeat})) is None


def test_ample_memory_leaves_no_repeat_in_a_few_tries():
    """Quarter by quarter, then more at once."""
    chain = random_chain(0, num_stages=40)
    names = tuple(schedsim.plan(chain, 2**40, "recompute_all").schedule.names)
    tried = []
    fitting = fitting_within(chain, 2**40, tried)
    found = fewer_repeats(chain.graph, names, fitting(names), fitting, 10)
    assert repeats_of(found.names) == []
    assert len(tried) <= 4


def test_a_repeat_for_another_repeat_goes_with_it():
    """To replay the last of three blocks, those before it are replayed; one run is asked to go."""
    chain = schedsim.Chain.from_arrays(
        "three", 4, forward_s=[1] * 3, backward_s=[1] * 3, output_bytes=[4] * 3,
        saved_bytes=[8] * 3,
    )  # fmt: skip
    names = ("F0", "F1", "F2", "loss", "F0", "F1", "F2", "B2", "B1", "F0", "B0")
    simulate(chain, Schedule.from_names(names))
    left = without_runs(chain.graph, names, {("F2", 1)})
    assert left == ("F0", "F1", "F2", "loss", "F0", "F1", "B2", "B1", "F0", "B0")
    left = without_runs(chain.graph, names, {("F2", 1), ("F1", 1)})
    assert left == ("F0", "F1", "F2", "loss", "F0", "B2", "B1", "F0", "B0")  # B1 reads its output
    one_fewer = set(one_repeat_fewer(chain.graph, names))
    assert one_fewer == {without_runs(chain.graph, names, {one}) for one in repeats_of(names)}
    assert len(one_fewer) == 4
