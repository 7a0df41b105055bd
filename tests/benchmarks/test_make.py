"""The instances of the library: enough, described, small, and made again bit by bit."""

import ast

import pytest
from rematlib import FOLDER, script

from schedsim import Chain, load
from schedsim.files.document import from_dict
from schedsim.files.workload_files import workload_hash

check, families, make = script("check"), script("families"), script("make")
ROWS = check.read(FOLDER / "index.json")["instances"]


def test_there_are_enough_and_all_are_described():
    assert len(ROWS) >= 200
    assert len({row["name"] for row in ROWS}) == len({row["content_hash"] for row in ROWS})
    assert {row["group"] for row in ROWS} == set(make.GROUPS)
    assert [row["name"] for row in ROWS] == [recipe.name for recipe in make.recipes()]
    for row in ROWS:
        assert len(set(row["budgets_bytes"])) == 4
        assert row["least_bytes"] <= row["budgets_bytes"][0]
        assert row["budgets_bytes"][-1] < row["store_all_peak_bytes"]


def test_all_of_it_is_small():
    files = [file for file in FOLDER.rglob("*") if file.is_file() and file.suffix != ".pyc"]
    assert sum(file.stat().st_size for file in files) < 6.5e6


@pytest.mark.parametrize("group", sorted(make.GROUPS))
def test_what_is_made_again_is_what_is_kept(group):
    """Captured models are only read: another version of torch may trace other ops."""
    recipes = {recipe.name: recipe for recipe in make.recipes()}
    chosen = [row for row in ROWS if row["group"] == group]
    for row in chosen[:: max(1, len(chosen) // 4)]:
        document = check.read(FOLDER / row["file"])
        assert check.content_hash(document) == row["content_hash"]
        kept = from_dict(document)
        assert workload_hash(kept) == row["content_hash"]
        if group != "graph-captured":
            made, unit_s = make.make(recipes[row["name"]])
            assert made == kept
            assert make.described(recipes[row["name"]], made, unit_s).items() <= row.items()


def test_times_are_whole_numbers():
    for row in ROWS[::7]:
        workload = load(FOLDER / row["file"])
        times = (
            [t for s in workload.stages for t in (s.forward_s, s.backward_s)]
            if isinstance(workload, Chain)
            else [op.time_s for op in workload.ops]
        )
        assert all(time == int(time) for time in times)


def test_families_draw_from_the_lasting_generator_alone():
    """`random` keeps the sequence of ``random()`` for a seed, and promises it of no other call."""
    tree = ast.parse((FOLDER / "families.py").read_text())
    called = {
        node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Attribute)
        and node.func.value.attr == "_random"
    }
    assert called == {"random"}
    draw = families.Draw(7)
    assert [draw.between(0, 99) for _ in range(6)] == [32, 15, 65, 7, 53, 36]
