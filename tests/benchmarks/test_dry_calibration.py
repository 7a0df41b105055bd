"""The committed comparison of the dry CUDA device with published peaks is what it says."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from dataclasses import asdict
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def loaded():
    """The benchmark as a module; it needs no torch."""
    spec = importlib.util.spec_from_file_location("calibrated", BENCHMARKS / "dry_calibration.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["calibrated"] = module  # a dataclass looks for its module there
    spec.loader.exec_module(module)
    return module


def test_every_row_that_is_asked_for_was_run_as_it_stands():
    """The settings in the results are those of the script."""
    module = loaded()
    measured = {row["name"]: row for row in module._known()}
    asked = {row.name: asdict(row) for row in module.ROWS_ASKED}
    assert list(measured) == list(asked)
    for name, settings in asked.items():
        assert {field: measured[name][field] for field in settings} == settings, name
        assert measured[name]["torch"].startswith(settings["with_torch"] + "."), name


def test_the_page_is_made_of_the_rows():
    """At least 20 rows of four sources, half of them within one per cent."""
    module = loaded()
    rows = module._known()
    assert module.PAGE.read_text() == module.page(rows)
    assert len(rows) >= 20
    assert len({row["source"] for row in rows}) >= 4
    assert statistics.median(abs(module.compared(row)) for row in rows) <= 0.01


def test_compiled_rows_found_every_graph_compiled():
    """What Inductor compiles in a run changes the segments of the step that is measured."""
    module = loaded()
    compiled = [
        row
        for row in module._known()
        if (row["compiled"] or row["compiled_loss"]) and row["with_torch"] != module.UNCACHED
    ]
    assert len(compiled) >= 10
    assert {row["compiled_anew"] for row in compiled} == {0}


def test_a_row_is_run_until_nothing_is_compiled_anew(monkeypatch, capsys):
    """And refused where that does not end."""
    module = loaded()
    row = module.ROWS_ASKED[2]
    for misses, runs, found in (([0], 1, True), ([2, 0], 2, True), ([2, 2, 2], 3, False)):
        left = iter(misses)
        seen = []

        def once(row, python, left=left, seen=seen):
            seen.append(row.name)
            return {"compiled_anew": next(left)}

        monkeypatch.setattr(module, "run_once", once)
        assert (module.run(row, "python") is not None) == found
        assert len(seen) == runs
    assert "compiles 2 graphs anew" in capsys.readouterr().err


def test_an_error_is_relative_to_what_was_published():
    """2 GiB for a published 1.6."""
    row = {"quantity": "active", "active_bytes": 2 << 30, "published_gib": 1.6}
    assert abs(loaded().compared(row) - 0.25) < 1e-12
