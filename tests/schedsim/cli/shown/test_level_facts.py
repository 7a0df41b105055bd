"""What a plan says of its memory levels: how often each is written and read."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from chains import unit_chain

import schedsim
from schedsim.cli.shown.level_facts import level_facts
from schedsim.dataflow.copies import copies_in
from schedsim.plans.search import NO_SEARCH

CHAIN = unit_chain(12)


@cache
def planned():
    """With two levels below the device's memory."""
    return schedsim.plan(CHAIN, 8, "hrevolve", levels=[(2, 0.5, 0.25), (9, 2.0, 1.0)])


def test_copies_are_counted_by_level():
    """As the schedule runs them: what is read was written, and slots bound what is there."""
    simulation = planned().simulate(CHAIN)
    facts = dict(level_facts(planned(), simulation))
    names = simulation.run_names
    assert list(facts) == ["level 2", "level 3", "one at a time"]
    for number, (slots, write, read) in {2: (2, "500 ms", "250 ms"), 3: (9, "2 s", "1 s")}.items():
        here = [copy for copy in copies_in(names) if copy.level == number]
        writes = sum(not copy.back for copy in here)
        assert facts[f"level {number}"].startswith(
            f"{slots} slots, {writes} writes of {write}, {len(here) - writes} reads of {read}, "
        )
    assert int(facts["level 2"].split()[-4]) <= 2
    assert sum(copy.back for copy in copies_in(names)) > 0


def test_the_time_of_copies_one_after_the_other():
    """The planner's own number, where it says one."""
    facts = dict(level_facts(planned(), planned().simulate(CHAIN)))
    assert planned().search.figures["synchronous_s"] >= planned().makespan_s - 1e-9
    assert facts["one at a time"].endswith("were copies to stop the computation")
    silent = replace(planned(), search=NO_SEARCH)
    assert "one at a time" not in dict(level_facts(silent, planned().simulate(CHAIN)))


def test_a_plan_without_levels_has_no_such_lines():
    """Whatever its workload."""
    plain = schedsim.plan(CHAIN, 8)
    assert level_facts(plain, plain.simulate(CHAIN)) == []
