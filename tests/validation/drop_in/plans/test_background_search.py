"""Searches beside the loop."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

pytest.importorskip("torch")

from schedsim.validation.drop_in.plans import background_search
from schedsim.validation.drop_in.plans.background_search import BackgroundSearch


def test_one_at_a_time_and_taken_once():
    search, may_end = BackgroundSearch(), threading.Event()

    def slow():
        may_end.wait(10)
        return 7

    assert search.start(slow)
    assert search.taken() is None
    assert not search.start(lambda: 8)
    may_end.set()
    search.wait()
    assert not search.start(lambda: 8)  # its result was not taken
    assert search.taken() == 7
    assert search.taken() is None


def test_a_search_that_fails_leaves_the_loop_as_it_is(caplog):
    search = BackgroundSearch()
    search.start(lambda: 1 / 0)
    search.wait()
    assert search.taken() is None
    assert "in the background failed" in caplog.text
    assert search.start(lambda: 2)
    search.wait()
    assert search.taken() == 2


_ENDS_MEANWHILE = """
import runpy, sys, time
from concurrent.futures import ThreadPoolExecutor

threads = ThreadPoolExecutor(2)

def search():
    threads.submit(time.sleep, 0.5)
    while True:  # threads take no more work while the process ends
        threads.submit(int).result()
        time.sleep(0.001)

runpy.run_path(sys.argv[1])["BackgroundSearch"]().start(search)
time.sleep(0.05)
"""


def test_a_search_that_the_end_of_the_process_breaks_says_nothing():
    """The main thread still counts as alive then."""
    command = [sys.executable, "-c", _ENDS_MEANWHILE, background_search.__file__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
