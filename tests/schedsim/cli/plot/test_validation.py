"""``plot validate``: a report drawn, and whatever is none refused in a line."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

REPORT = {
    "schema": "schedsim.validation/1",
    "name": "a $report$ \\frac",
    "timeline": {"predicted_bytes": [4, 9, 4], "measured_bytes": [4, 8, 4]},
    "predicted": {"peak_bytes": 9},
    "measured": {"peak_bytes": 8},
    "budget_bytes": 12,
}
ODD = (None, True, -1, 1.5, "x", [], {}, [1], ["x"], {"x": 1}, 10**400, [[1, 2], [3]])


def places(document, path=()):
    """Every place of a value in `document`."""
    for key, value in document.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from places(value, (*path, key))


def test_a_report_is_drawn(call, folder):
    """Its name as it is, and by how much the measured peak differs."""
    Path("r.json").write_text(json.dumps(REPORT))
    assert call("plot validate r.json -o x.svg") == (0, "", "wrote x.svg\n")
    assert Path("x.svg").read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize("place", list(places(REPORT)), ids=".".join)
def test_a_damaged_report_is_drawn_or_refused(call, folder, place):
    """Any value in any place, or none: never a fault of ours."""
    # Drawing takes a while: of what is drawn whatever it is, a few.
    for value in (None, 10**400, "a$\\b") if place == ("name",) else ODD:
        document = copy.deepcopy(REPORT)
        inner = document
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
        Path("r.json").write_text(json.dumps(document))
        code, out, err = call("plot validate r.json -o x.svg")
        assert code in (0, 2), (value, err)
        assert out == ""
        if code == 2:
            assert [line.split(":")[0] for line in err.splitlines()] == ["error", "hint"]
    del inner[place[-1]]
    Path("r.json").write_text(json.dumps(document))
    assert call("plot validate r.json -o x.svg")[0] in (0, 2)


@pytest.mark.parametrize("text", ["[]", "3", '{"schema": "schedsim.plan/2"}'])
def test_other_documents_are_refused(call, folder, text):
    """With the command that writes one."""
    Path("r.json").write_text(text)
    code, _, err = call("plot validate r.json -o x.svg")
    assert code == 2
    assert "r.json is no validation report" in err
    assert "schedsim validate ... -o report.json" in err
