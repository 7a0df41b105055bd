"""Results of a sweep as `compare` shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schedsim.cli.shown.compared_results import _cell, is_results, only_results
from schedsim.errors import SchedsimError
from schedsim.sweeps.tables import Cell

FEW = 'workloads = ["chain.json"]\nbudgets = ["60", "5"]\nplanners = ["rotor", "periodic"]\n'


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (None, ""),
        (Cell((0.125,), 1, False, None, ""), "+12.50 %"),
        (Cell((0.0,), 1, True, None, ""), "+0.00 % *"),
        (Cell((0.1, 0.2), 2, False, None, ""), "+10.00 % .. +20.00 %"),
        (Cell((0.1, 0.10000001), 2, True, None, ""), "+10.00 % *"),
        (Cell((0.1,), 3, False, None, ""), "+10.00 % (1 of 3)"),
        (Cell((), 1, False, 40, ""), "needs 40 B"),
        (Cell((), 1, False, None, ""), "-"),
        (Cell((), 1, False, 40, "Broken"), "error"),
    ],
)
def test_a_cell_in_words(cell, text):
    """The least and most of the seeds, how many found any, and a star for what is proven."""
    assert _cell(cell) == text


def test_results_are_known_by_their_suffix_and_stand_alone():
    """Whatever describes a workload has no meaning beside them."""
    assert is_results(("a.json", "r.jsonl"))
    assert not is_results(("r.json",))
    assert only_results(("r.jsonl",), {"--mem": None}) == "r.jsonl"
    with pytest.raises(SchedsimError, match=r"--mem does not go with r\.jsonl"):
        only_results(("r.jsonl",), {"--layers": None, "--mem": 0})
    with pytest.raises(SchedsimError, match="does not go with other files"):
        only_results(("r.jsonl", "chain.json"), {})


@pytest.fixture
def results(folder, call) -> str:
    Path("e.toml").write_text(FEW)
    assert call("sweep e.toml -o r.jsonl")[0] == 0
    return "r.jsonl"


def test_rows_as_a_table_and_as_a_document(results, call):
    """A line for each budget, ascending; the file holds what is printed."""
    code, out, _ = call(f"compare {results}")
    assert code == 0
    assert [line.split()[1:3] for line in out.splitlines()[1:3]] == [["5", "5"], ["60", "60"]]
    code, out, _ = call(f"compare {results} --planners periodic --json -o rows.json")
    document = json.loads(out)
    assert document == json.loads(Path("rows.json").read_text())
    assert {row["planner"] for row in document["rows"]} == {"periodic"}


def test_only_what_fits_nowhere_is_a_no(results, call):
    """Exit 1 where no row has a schedule; an error of a run is said once, with whose it is."""
    lines = Path(results).read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    Path("none.jsonl").write_text(
        "".join(f"{line}\n" for line, row in zip(lines, rows, strict=True) if row["budget"] == "5")
    )
    assert call("compare none.jsonl")[0] == 1
    broken = rows[0] | {"status": "error", "error": {"type": "Broken", "message": "it broke"}}
    Path("broken.jsonl").write_text(f"{json.dumps(broken)}\n" * 2 + lines[1] + "\n")
    code, _, err = call("compare broken.jsonl")
    assert (code, err) == (0, f"{broken['planner']} on {broken['workload']}: it broke\n")


def test_planners_without_rows_are_refused(results, call):
    """As is a file without any row."""
    code, out, err = call(f"compare {results} --planners rotor,auto")
    assert (code, out) == (2, "")
    assert "r.jsonl has no rows of planner 'auto'" in err
    Path("empty.jsonl").touch()
    assert "empty.jsonl has no results yet" in call("compare empty.jsonl")[2]
