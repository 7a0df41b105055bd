"""Which Python a step runs: the names that it looks up, and the globals that it reads."""

from __future__ import annotations

import cProfile
import gc
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.guards.reach import CodeRun, is_library  # noqa: E402

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
