"""``schedsim planners``: every planner, with what it takes and proves."""

from __future__ import annotations

import json

from schedsim.algorithms import all_planners


def test_the_document_is_the_registry(call):
    """Each planner in its order, with all that its row says."""
    code, out, err = call("planners --json")
    rows = json.loads(out)["planners"]
    assert (code, err) == (0, "")
    infos = list(all_planners().values())
    assert [row["name"] for row in rows] == [info.name for info in infos]
    for row, info in zip(rows, infos, strict=True):
        assert tuple(row["kinds"]) == tuple(info.kinds)
        assert (row["complexity"], row["optimal_for"]) == (info.complexity, info.optimal_for)
        assert row["summary"]
        assert set(row["kinds"]) <= {"chain", "graph", "pipeline"}


def test_two_tables_have_a_row_for_each(call):
    """Its facts, then what it does; a planner without a proof has an empty cell, not a word."""
    out = call("planners")[1]
    facts, summaries = out.split("\n\n")
    for name in all_planners():
        for table in (facts, summaries):
            assert sum(line.split(" ")[0] == name for line in table.splitlines()) == 1
    assert facts.splitlines()[0].split()[:3] == ["planner", "takes", "time"]
