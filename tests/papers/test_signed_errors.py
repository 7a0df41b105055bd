"""Signed errors of all published steps, in two halves."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "papers"))

import signed_errors
from signed_errors import is_looked_at, read, table


def test_errors_are_those_of_the_time(tmp_path):
    """Below 0 where a step is predicted too fast, by its rate or by its seconds."""
    rows = [
        ("torchtitan", "one: eager, tokens per second and device", 80, 100),
        ("cluster-steps", "two: seconds of an iteration", 10.0, 11.0),
        ("cluster-steps", "three: Tflop/s a GPU", 440, 400),
        ("torchtitan", "one: eager, reserved", 1, 2),
        ("chen-2016", "four: seconds of an iteration", 1, 2),
    ]
    keys = ("source", "what", "claimed", "ours")
    file = tmp_path / "results.jsonl"
    file.write_text("\n".join(json.dumps(dict(zip(keys, row, strict=True))) for row in rows))
    found = {name: round(error, 6) for (_, name), error in read(file).items()}
    assert found == {"one: eager": -0.2, "two": 0.1, "three": 0.1}


def test_every_row_is_in_one_half():
    """Both are there, and the table counts each row once in each of its parts."""
    found = read(signed_errors.RESULTS)
    looked = sum(is_looked_at(*key) for key in found)
    assert 0.4 < looked / len(found) < 0.6
    lines = table(found, {}).splitlines()
    counts = [int(line.split("|")[2]) for line in lines[2:] if ", all |" in line]
    assert counts == [looked, len(found) - looked, len(found)]
    beside = table(found, dict(list(found.items())[:9])).splitlines()
    assert "| both, all | 9 |" in beside[-1]
