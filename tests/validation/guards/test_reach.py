"""Which Python a step runs: the names that it looks up, and the globals that it reads."""

from __future__ import annotations

import cProfile
import datetime
import gc
import logging
import sys
import time

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.guards.reach import (  # noqa: E402
    CodeRun,
    changed_methods,
    is_library,
    methods_of,
)

COLLECTIONS = 0
FINALIZED = 0
READ = 1.0


class InACircle:
    """Ends only when cycles are collected."""

    def __init__(self):
        self.own = self

    def __del__(self):
        global FINALIZED
        FINALIZED += 1


def counted(phase, info):
    """As of a tool that watches the collector."""
    global COLLECTIONS
    COLLECTIONS += 1


def reads_a_global():
    """What a step reads itself counts, before a collection and after one."""
    return READ


@pytest.mark.slow
def test_what_a_collection_runs_is_not_noted_and_what_follows_is():
    before, finalized = list(gc.callbacks), FINALIZED
    gc.callbacks.append(counted)
    InACircle()
    collections = COLLECTIONS
    with CodeRun() as run:
        gc.collect()
        reads_a_global()
    gc.callbacks.remove(counted)
    # one start and one stop
    assert (collections + 2, finalized + 1) == (COLLECTIONS, FINALIZED)
    assert gc.callbacks == before
    assert reads_a_global.__code__ in run.codes
    assert not {counted.__code__, InACircle.__del__.__code__} & set(run.codes)
    assert [names for scope, names in run.reach().scopes if scope is globals()] == [{"READ"}]


def test_a_profiler_in_c_goes_on_afterwards():
    """Who profiles a loop may plan in it: cProfile is no function for ``sys.setprofile``."""
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        with CodeRun() as run:
            reads_a_global()
        now = sys.getprofile()
        gc.isenabled()
    finally:
        profiler.disable()
    assert reads_a_global.__code__ in run.codes
    assert now is profiler
    assert any("isenabled" in str(row.code) for row in profiler.getstats())


def test_what_reads_checkpoints_is_a_library():
    """Its tables grow when a checkpoint is saved, and no step reads them."""
    assert is_library("transformers.conversion_mapping")
    assert is_library("huggingface_hub.constants")
    assert not is_library("transformers.models.gpt2.modeling_gpt2")
    assert not is_library("transformers.utils.generic")


def test_code_that_asks_a_file_or_a_clock_is_noted(tmp_path):
    """Wherever in Python it asks; what libraries ask for themselves is not."""
    path = tmp_path / "number"
    path.write_text("1")

    def by_open():
        with open(path) as file:
            return file.read()

    def by_path():
        return path.read_text()

    def by_clock():
        return time.time() + datetime.datetime.now().timestamp()

    for function in (by_open, by_path, by_clock):
        with CodeRun() as run:
            function()
        assert any(place.startswith(f"{function.__name__} in ") for place in run.asked)
    with CodeRun() as run:
        torch.ones(2).add(1)
        logging.getLogger("of nobody").info("says the time")
    assert not run.asked


def test_methods_that_a_class_is_given_are_told():
    class Own(torch.nn.Linear):
        def helper(self):
            return 1

    known = methods_of(torch.nn.Sequential(Own(2, 2)))
    assert changed_methods(known) == ()
    first, Own.helper = Own.helper, lambda self: 2
    assert [name for _, name, _ in changed_methods(known)] == ["helper"]
    Own.helper = first
    assert changed_methods(known) == ()
