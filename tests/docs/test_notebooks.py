"""The gallery's notebooks: each runs, and shows what comes out."""

import importlib.util
import json
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def module():
    spec = importlib.util.spec_from_file_location("docs_notebooks", DOCS / "notebooks.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


notebooks = module()


@pytest.mark.slow
def test_notebooks_show_what_comes_out():
    """All in one kernel; pictures are there, and times of planning may differ."""
    for name in ("nbformat", "nbclient", "ipykernel", "torch"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    seen = 0
    for file, before, now in notebooks.executed(notebooks.NOTEBOOKS):
        now = notebooks.lean(now)
        assert notebooks.texts(now) == notebooks.texts(before), file.name
        seen += 1
    assert seen == len(notebooks.NOTEBOOKS) >= 3


@pytest.mark.parametrize("file", notebooks.NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_is_executed_and_lean(file):
    """Every cell has run, no output is an error, and the file is one that a review can read."""
    document = json.loads(file.read_text())
    code = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    assert code
    for cell in code:
        assert cell["execution_count"]
        assert [o for o in cell["outputs"] if o["output_type"] == "error"] == []
    assert file.stat().st_size < 250_000
    assert document["cells"][0]["source"][0].startswith("# ")


def test_times_are_left_out_and_words_are_not():
    """Two outputs differ by what they say, and not by how long it took."""
    cell = {"outputs": [{"output_type": "stream", "text": "optimal, in 24.2 ms"}]}
    other = {"outputs": [{"output_type": "stream", "text": "optimal, in 1 s"}]}
    last = {"outputs": [{"output_type": "stream", "text": "feasible, in 1 s"}]}
    books = [type("Book", (), {"cells": [one]})() for one in (cell, other, last)]
    found = [notebooks.texts(book) for book in books]
    assert found[0] == found[1] != found[2]
