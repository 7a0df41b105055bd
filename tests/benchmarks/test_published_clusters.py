"""The search beside published runs: rows of ended and of unfinished searches."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import schedsim

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "published_clusters.py"
OPTIONS = {"fsdp": 2, "batch": 2, "seq": 512, "recompute": "full"}


@pytest.fixture(scope="module")
def script():
    """The module; scripts are no package."""
    spec = importlib.util.spec_from_file_location("schedsim_published_clusters", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_the_page_tells_slower_and_unfinished_ones(script):
    rows = [
        script.SearchedRun("one", 8, 2.0, 5, 40, 1.5, 1.5, 3.0, "fsdp 8"),
        script.SearchedRun("two", 8, 2.0, 5, 10, 2.5, 1.5, 3.0, "fsdp 8"),
        script.SearchedRun("none", 8, 2.0, 5, 40, 0.0, 1.5, 3.0),
        script.SearchedRun("long", 512, 2.0, 5, 40, processor_s=60.0, unfinished=True),
    ]
    page = script.page(rows, 40, 1, ["later"])
    assert page.endswith("Not run yet: later.\n")
    assert "| one | 8 | 2.000 | 1.500 | 0.750 | 0.0% | 3 | fsdp 8 |" in page
    assert "| two (effort 10) | 8 | 2.000 | 2.500 |" in page
    assert "3 runs, 2 of them faster than what the search chose" in page
    assert "Not finished in 1 minutes of processor time: long." in page


def test_ranks_that_are_alike_are_told_once(script):
    assert script.told("full/full/keep=q/none/none") == "full x2/keep=q/none x2"
    assert script.told("none") == "none"


def test_a_row_is_made_again_where_numbers_or_the_time_changed(script):
    """Those of the run itself, or of the step that was chosen for it."""
    its = schedsim.cluster("llama3.2-3b", device="a100-80gb", **OPTIONS)
    numbers = ("one", 2, its.step_s, its.reserved_bytes, 40)
    where = ("llama3.2-3b", "a100-80gb", OPTIONS)
    chosen = (its.step_s, its.step_s, 1.0, "fsdp 2")
    choice = {"fsdp": 2, "batch": 2, "recompute": "full"}
    row = script.SearchedRun(*numbers, *chosen, False, choice, its.reserved_bytes)
    assert script.is_current(row, *where, 10)
    assert not script.is_current(replace(row, chosen_s=its.step_s * 1.001), *where, 10)
    assert not script.is_current(replace(row, chosen_reserved_bytes=1), *where, 10)
    assert not script.is_current(replace(row, choice={}), *where, 10)
    assert script.is_current(script.SearchedRun(*numbers, 0.0, 1.0), *where, 10)
    other = script.SearchedRun("one", 2, its.step_s, its.reserved_bytes + 1, 40, 1.0)
    assert not script.is_current(other, *where, 10)
    unfinished = script.SearchedRun(*numbers, processor_s=60.0, unfinished=True)
    assert script.is_current(unfinished, *where, 1)
    assert not script.is_current(unfinished, *where, 2)


@pytest.mark.slow
def test_a_search_ends_with_its_processor_time(script):
    """It has a row then too, which says so."""
    options = {"fsdp": 8, "batch": 2, "recompute": "selective"}
    found = script.search_in_time("a", "llama3-8b", "h100-96gb", options, 40, 1 / 60)
    assert found.unfinished
    assert found.its_s > 0
    found = script.search_in_time("b", "llama3.2-3b", "a100-80gb", OPTIONS, 1, 10)
    assert (found.unfinished, found.devices) == (False, 2)
    assert found.chosen_s >= found.lower_bound_s > 0
    assert script.is_current(found, "llama3.2-3b", "a100-80gb", OPTIONS, 10)
