"""The results file: torn lines, locks, order."""

from __future__ import annotations

import json
import os

import pytest

from schedsim.errors import SchedsimError
from schedsim.sweeps.results import SCHEMA, ResultFile, encode, in_order, read_rows


def row(key: str, **more: object) -> dict[str, object]:
    """A row as short as they come."""
    return {"schema": SCHEMA, "key": key, **more}


def complete(key: str) -> dict[str, object]:
    """A row with all that a run which failed has."""
    return row(
        key,
        workload="w",
        content_hash="h",
        budget="5",
        budget_bytes=5,
        store_all_bytes=9,
        planner="auto",
        options={},
        status="error",
        error={"message": "m"},
    )


def test_a_line_cut_off_anywhere_is_dropped(tmp_path):
    """Whatever part of the last line reached the file, the rows before it stay, and it goes on."""
    whole = encode(complete("a")), encode(complete("b"))
    for cut in range(len(whole[1])):
        path = tmp_path / f"{cut}.jsonl"
        path.write_bytes(whole[0] + whole[1][:cut])
        assert [r["key"] for r in read_rows(path)] == ["a"]
        with ResultFile(path) as file:
            assert list(file.rows) == ["a"]
            assert file.num_dropped_bytes == cut
            file.append(complete("b"))
        assert path.read_bytes() == whole[0] + whole[1]


def test_the_first_line_cut_off_leaves_an_empty_file(tmp_path):
    """A sweep killed in its first write begins anew."""
    path = tmp_path / "r.jsonl"
    line = encode(row("a"))
    for cut in range(len(line)):
        path.write_bytes(line[:cut])
        with ResultFile(path) as file:
            assert file.rows == {}
        assert path.read_bytes() == b""


@pytest.mark.parametrize("content", [b"hello\n", b"{}\n", b'{"layers": 1', b"\x00\xff"])
def test_another_file_is_refused_and_kept(tmp_path, content):
    """A workload given as -o by mistake is not overwritten."""
    path = tmp_path / "r.jsonl"
    path.write_bytes(content)
    with pytest.raises(SchedsimError, match="line 1 is no result"):
        ResultFile(path)
    assert path.read_bytes() == content


def test_a_bad_line_in_the_middle_is_no_cut(tmp_path):
    """Only the last line can have been cut off; anything else is damage, with its number."""
    path = tmp_path / "r.jsonl"
    path.write_bytes(encode(row("a")) + b"{\n" + encode(row("b")))
    with pytest.raises(SchedsimError, match="line 2 is no result"):
        ResultFile(path)


def test_two_sweeps_do_not_write_one_file(tmp_path):
    """The second is refused until the first lets go; a rename by the first changes nothing."""
    path = tmp_path / "r.jsonl"
    with ResultFile(path) as first:
        first.append(row("a"))
        with pytest.raises(SchedsimError, match=r"another sweep is writing r\.jsonl"):
            ResultFile(path)
        first.append(row("b"))
        first.finish([row("b"), row("a")])
    with ResultFile(path) as second:
        assert list(second.rows) == ["b", "a"]


def test_the_later_of_two_rows_counts(tmp_path):
    """One that was run again after an error stands behind it until the file is in order."""
    path = tmp_path / "r.jsonl"
    path.write_bytes(encode(row("a", status="error")) + encode(row("a", status="optimal")))
    with ResultFile(path) as file:
        assert file.rows["a"]["status"] == "optimal"


def test_finishing_keeps_permissions_and_leaves_nothing_behind(tmp_path):
    """The file is replaced in one step."""
    path = tmp_path / "r.jsonl"
    with ResultFile(path) as file:
        os.chmod(path, 0o640)
        file.finish([row("a")])
    assert path.stat().st_mode & 0o777 == 0o640
    assert [p.name for p in tmp_path.iterdir()] == ["r.jsonl"]


def test_order_and_names_are_those_of_the_experiment():
    """Rows of other experiments follow by key; a workload may have been renamed since."""
    rows = {key: row(key, workload="old", peak=1) for key in "dcba"}
    ordered = in_order(["c", "a", "x"], {"c": {"workload": "new"}, "a": {}, "x": {}}, rows)
    assert [(r["key"], r["workload"]) for r in ordered] == [
        ("c", "new"),
        ("a", "old"),
        ("b", "old"),
        ("d", "old"),
    ]
    assert json.loads(encode(ordered[0]))["peak"] == 1
