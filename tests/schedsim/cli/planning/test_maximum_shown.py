"""What is said of the largest and the fastest: with the proof, or that there is none."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from chains import unit_chain

import schedsim
from schedsim.cli.planning.maximum_shown import document, show
from schedsim.plans.least_budget import LeastBudget


def scaled(size: int) -> schedsim.Chain:
    return replace(unit_chain(3), input_bytes=size)


FOUND = schedsim.maximize(scaled, 40)


def said(capsys, found, field="batch") -> str:
    show(found, field, 40)
    return capsys.readouterr().out


def test_a_proof_names_what_the_next_size_needs(capsys):
    """And up to where nothing fits."""
    text = said(capsys, FOUND)
    size = FOUND.largest.size
    assert f"largest batch  {size}, " in text
    least = FOUND.beyond.plan.min_feasible_bytes
    assert f"batch {size + 1} needs {least} B, proven over {FOUND.scope}" in text
    assert ("none up to" in text) == (FOUND.checked_to > size + 1)
    assert "no other can be faster, by store-all times" in text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"proof": "found", "scope": ""}, "nothing found that fits; the least found is"),
        ({"beyond": None, "proof": "limit"}, "the search ended at"),
        ({"checked_to": 10**6}, "none up to 1000000 fits"),
        ({"fastest_proven": False}, f"of the {len(FOUND.tried)} sizes planned"),
    ],
)
def test_what_is_not_proven_is_not_said(capsys, change, says):
    """In the words of what is known."""
    assert says in said(capsys, replace(FOUND, **change))


def test_a_size_of_which_nothing_is_known(capsys):
    """It does not fit, and nobody knows what would."""
    beyond = replace(FOUND.beyond, plan=replace(FOUND.beyond.plan, least=LeastBudget()))
    found = replace(FOUND, beyond=beyond, tried=(*FOUND.tried[:-1], beyond))
    assert f"batch {beyond.size} does not, proven" in said(capsys, found)


def test_a_long_table_is_thinned_and_keeps_what_matters(capsys):
    """At most a dozen rows and the three: the largest, the fastest, the one beyond."""
    plan = FOUND.largest.plan
    tried = tuple(replace(FOUND.largest, size=i, work=float(i), plan=plan) for i in range(1, 101))
    found = replace(FOUND, tried=tried, largest=tried[-1], fastest=tried[70], beyond=None)
    rows = said(capsys, found).split("\n\n")[1].splitlines()[1:]
    sizes = [int(row.split()[0]) for row in rows]
    assert sizes == sorted(sizes)
    assert 12 <= len(sizes) <= 14
    assert {1, 71, 100} <= set(sizes)


def test_the_document_has_a_row_for_each_size():
    """Plain JSON; the plan in it is that of the largest."""
    found = json.loads(json.dumps(document(FOUND, "batch", 40)))
    assert [row["size"] for row in found["tried"]] == [one.size for one in FOUND.tried]
    assert found["largest"]["work_per_s"] == FOUND.largest.rate
    assert found["plan"]["peak_bytes"] == found["largest"]["peak_bytes"] <= 40
    assert found["beyond"]["status"] == "infeasible"
    assert document(replace(FOUND, beyond=None), "batch", 40)["beyond"] is None
