"""Settings that all tests share."""

from __future__ import annotations

import gc
import os

# Before numpy or torch is loaded, and for the processes that tests start: these run side by side,
# and threads beyond the cores wait for each other by spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings
from tiers import SLOW

# The same examples every time, and no deadline: the first call of a kernel compiles it.
settings.register_profile("schedsim", derandomize=True, deadline=None)
settings.load_profile("schedsim")

# The modules of the suite and of its libraries are millions of objects. A full collection visits
# each one, which is a fifth of the time of importing them.
gc.disable()


def pytest_addoption(parser):
    """The slow tier: tests of more than about two seconds, and more examples of each property."""
    parser.addoption(
        "--slow", action="store_true", help="run the tests marked slow too, and all examples"
    )


def pytest_configure(config):
    """Tell the helpers of tests, which are imported later and in other processes."""
    if config.getoption("--slow"):
        os.environ[SLOW] = "1"


def pytest_collection_modifyitems(config, items):
    """Leave the slow tier out, unless it was asked for: by ``--slow``, ``-m`` or a test's name."""
    named = any("::" in argument for argument in config.args)
    if config.getoption("--slow") or config.getoption("markexpr") or named:
        return
    left_out = [item for item in items if item.get_closest_marker("slow")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


def pytest_collection_finish():
    """Leave what the modules hold out of all later collections of garbage."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """Leave what the tests of a file have left behind out of the collections of the next files.

    Graphs, compiled code and caches are a million objects by the end. What looks for tensors of the
    process collects garbage and visits each object, some ten times a test.
    """
    done = yield
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return done


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Let a worker that is done take tests from another: some take as long as hundreds do."""
    if config.getvalue("dist") == "load":
        from xdist.scheduler import WorkStealingScheduling

        return WorkStealingScheduling(config, log)
    return None
