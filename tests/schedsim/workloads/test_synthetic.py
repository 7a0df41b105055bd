"""Synthetic chains."""

from __future__ import annotations

import pytest

from schedsim import SchedsimError, Schedule, simulate
from schedsim.workloads import SYNTHETIC, WorkloadOptions, build_workload


@pytest.mark.parametrize("num_stages", [1, 2, 7])
@pytest.mark.parametrize("name", list(SYNTHETIC))
def test_they_depend_on_the_seed_alone(name, num_stages):
    """The same twice, of the length asked, and simulated."""
    options = WorkloadOptions(synthetic=name, layers=num_stages, seed=3)
    chain = build_workload(options).workload
    assert chain == build_workload(options).workload
    assert chain.num_stages == num_stages
    assert simulate(chain, Schedule.store_all(chain)).peak_bytes > 0


@pytest.mark.parametrize("name", ["one-huge", "heavy-tailed"])
def test_the_drawn_ones_differ_between_seeds(name):
    """Five seeds over fifty stages give at least two chains."""
    chains = [SYNTHETIC[name](50, seed) for seed in range(5)]
    assert any(chain != chains[0] for chain in chains)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"synthetic": "uniform"}, "--layers"),
        ({"synthetic": "uniform", "layers": 0}, "--layers"),
        ({"synthetic": "unifrom", "layers": 3}, "--synthetic 'unifrom'"),
        ({"synthetic": "uniform", "layers": 3, "hidden": 8}, "--hidden"),
        ({"synthetic": "uniform", "layers": 3, "head": True}, "--head"),
        ({"synthetic": "uniform", "layers": 3, "seed": -1}, "--seed -1"),
    ],
)
def test_what_does_not_go_with_them(options, says):
    """The message names the option, and the hint says what to do."""
    with pytest.raises(SchedsimError, match=says) as caught:
        build_workload(WorkloadOptions(**options))
    assert caught.value.hint
