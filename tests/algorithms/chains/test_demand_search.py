"""Parts of the search over demands: its bound against what is spent, units of time, hashes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from chains import random_chain
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.chains._demand_search import (
    FOUND,
    FULL,
    GOAL,
    NUM,
    ChainItems,
    States,
    begin,
    expand,
    runs_to,
    slot_of,
    time_unit_s,
)
from schedsim.algorithms.chains.frontier import frontier
from tiers import examples

from schedsim import Schedule, simulate
from schedsim.kernels.compiled import in_python


def searched(chain, budget, begin=begin, expand=expand):
    """All states, and why the search came back."""
    items, states = ChainItems.of(chain, budget), States.of(2)
    begin(items, states)
    while (why := expand(items, states, 10**6, math.inf)) == FULL:
        states = states.larger(2 * states.capacity)
    return items, states, why


@pytest.mark.parametrize("seed", range(8))
def test_no_bound_on_the_way_is_above_what_the_way_took(seed):
    """From every state on the path of the optimum: behind it and in front of it make the whole."""
    chain = random_chain(np.random.default_rng(seed), 5)
    peak = simulate(chain, Schedule.store_all(chain)).peak_bytes
    _, states, why = searched(chain, (frontier(chain, 0).min_feasible_bytes + peak) // 2)
    assert why == FOUND
    state = goal = int(states.counts[GOAL])
    whole = states.spent_s[goal]
    while state >= 0:
        assert states.spent_s[state] + states.rest_s[state] <= whole * (1 + 1e-9)
        state = int(states.parent[state])
    runs = runs_to(states, goal, chain.num_stages)
    assert simulate(chain, Schedule(chain.op_names, runs)).makespan_s == pytest.approx(whole)


def test_states_are_found_again_after_their_tables_have_grown():
    chain = random_chain(np.random.default_rng(1), 5)
    _, states, _ = searched(chain, 10**9)
    for state in range(int(states.counts[NUM])):
        at = slot_of(
            states,
            int(states.outputs[state]),
            int(states.residuals[state]),
            int(states.position[state]),
        )
        assert states.slots[at] == state


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.sampled_from([1.0, 0.001, 1 / 3]))
@settings(max_examples=examples(40), deadline=None)
def test_the_unit_of_times_divides_them_all(numbers, unit):
    times = [number * unit for number in numbers]
    found = time_unit_s(times, sum(times))
    assert found == pytest.approx(math.gcd(*numbers) * unit)


def test_times_without_a_unit_have_none():
    assert time_unit_s([1.0, math.pi], 10.0) == 0.0
    assert time_unit_s([], 0.0) == 0.0


@pytest.mark.parametrize("seed", range(4))
def test_python_searches_as_machine_code_does(seed):
    """A new machine begins in Python: the plan must be that of one whose kernels are compiled."""
    chain = random_chain(np.random.default_rng(seed), 6, integer_times=False)
    peak = simulate(chain, Schedule.store_all(chain)).peak_bytes
    budget = (frontier(chain, 0).min_feasible_bytes + peak) // 2
    _, first, why = searched(chain, budget)
    _, second, again = searched(chain, budget, in_python(begin), in_python(expand))
    assert (why, list(first.counts)) == (again, list(second.counts))
    num = int(first.counts[NUM])
    for column in ("outputs", "residuals", "position", "spent_s", "rest_s", "parent", "move"):
        assert np.array_equal(getattr(first, column)[:num], getattr(second, column)[:num])
