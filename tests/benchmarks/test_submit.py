"""Handing in a better schedule, as docs/rematlib.md describes it."""

import json
import shutil

import pytest
from rematlib import FOLDER, script

check, submit = script("check"), script("submit")
NAME = "heavy-chain-8-1"


@pytest.fixture
def library(tmp_path):
    """A library of one instance, whose second certificate is worse than it could be."""
    rows = check.read(FOLDER / "index.json")["instances"]
    row = next(row for row in rows if row["name"] == NAME)
    for folder, file in (("instances", row["file"]), ("solutions", f"solutions/{NAME}.json.gz")):
        (tmp_path / folder).mkdir()
        shutil.copy(FOLDER / file, tmp_path / file)
    best = check.read(tmp_path / f"solutions/{NAME}.json.gz")
    right = best["certificates"][1]
    slow = dict(right, bound=None, gap=None, optimal=False, status="feasible")
    first = right["schedule"][0]
    slow["schedule"] = [first, *right["schedule"]]  # a run that nobody needs
    ops = {op.name: op for op in check.Instance(check.read(tmp_path / row["file"])).graph.ops}
    slow["makespan_s"] = str(check.rational(right["makespan_s"]) + ops[first].time)
    best["certificates"][1] = slow
    submit.write_json(tmp_path / f"solutions/{NAME}.json.gz", best)
    row["best"][1] = submit.summary(slow)
    submit.write_index(tmp_path, {"licence": "MIT"}, [row])
    (tmp_path / "better.json").write_text(json.dumps(right))
    assert check.check_library(tmp_path, [])["rejected"] == 0
    return tmp_path


def test_a_better_certificate_is_kept(library, capsys):
    better = str(library / "better.json")
    assert submit.main([better], library) == 0
    said = capsys.readouterr().out
    assert "faster: " in said
    assert "the first bound: " in said
    assert submit.main([better, "--by", "somebody, by hand", "--accept"], library) == 0
    kept = check.read(library / f"solutions/{NAME}.json.gz")["certificates"][1]
    assert kept["optimal"]
    assert kept["found"]["by"] == "somebody, by hand"
    assert check.check_library(library, [])["optimal"] == 10
    assert check.read(library / "index.json")["instances"][0]["best"][1]["status"] == "optimal"
    assert submit.main([better], library) == 1  # no news any more


def test_a_step_faster_than_persistent_ones_is_kept_beside_the_best_of_them(library, capsys):
    path = library / f"solutions/{NAME}.json.gz"
    known = check.read(path)
    known["certificates"][1] = json.loads((library / "better.json").read_text())
    removed = known["any_schedule"].pop(1)
    submit.write_json(path, known)
    (library / "beyond.json").write_text(json.dumps(removed))
    assert submit.main([str(library / "beyond.json"), "--accept"], library) == 0
    said = capsys.readouterr().out
    assert "faster: 71 s after 74 s" in said
    assert "the first bound: 71 s over any schedule" in said
    kept = check.read(path)
    assert kept["certificates"][1] == known["certificates"][1]
    assert [one["budget_bytes"] for one in kept["any_schedule"]] == [
        one["budget_bytes"] for one in kept["certificates"]
    ]
    row = check.read(library / "index.json")["instances"][0]["best"][1]
    assert (row["makespan_s"], row["any_schedule"]["makespan_s"]) == ("74", "71")
    assert check.check_library(library, [])["rejected"] == 0
    assert submit.main([str(library / "beyond.json")], library) == 1


def test_a_wrong_certificate_is_not(library, capsys):
    wrong = json.loads((library / "better.json").read_text())
    wrong["makespan_s"] = "1"
    (library / "wrong.json").write_text(json.dumps(wrong))
    assert submit.main([str(library / "wrong.json"), "--accept"], library) == 1
    assert "REJECTED" in capsys.readouterr().out


def test_other_budgets_and_instances_are_named(library, capsys):
    other = json.loads((library / "better.json").read_text())
    other["budget_bytes"] += 1
    (library / "other.json").write_text(json.dumps(other))
    assert submit.main([str(library / "other.json")], library) == 1
    assert "has the budgets [" in capsys.readouterr().out
    other["instance"]["content_hash"] = "sha256:1"
    (library / "other.json").write_text(json.dumps(other))
    assert submit.main([str(library / "other.json")], library) == 1
    assert "no instance of the library" in capsys.readouterr().out
    assert submit.main([str(library / "nothing.json")], library) == 2


def test_the_higher_bound_of_two_is_taken():
    old = {"schedule": ["a"], "makespan_s": "10", "status": "feasible"}
    old["bound"] = {"bound_s": "9", "scope": check.FIXED, "proof": {}}
    new = {**old, "makespan_s": "12", "bound": {**old["bound"], "bound_s": "10"}}
    assert submit.news_of(old, new) == ["a higher bound: 10 s after 9 s"]
    best = submit.joined(old, new)
    assert (best["makespan_s"], best["bound"]["bound_s"], best["gap"]) == ("10", "10", "0")
    assert (best["optimal"], best["status"]) == (True, "optimal")
