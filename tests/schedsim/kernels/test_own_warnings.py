"""Kernels are compiled without touching the warning filters, which are those of all threads."""

from __future__ import annotations

import threading
import warnings

import numpy as np
import scipy.linalg  # noqa: F401 - numba imports it when it first compiles, under filters of its own

from schedsim.kernels.compiled import kernel
from schedsim.kernels.record import Ints


def test_a_thread_that_compiles_leaves_a_recorder_of_another_thread(monkeypatch):
    """Which is set while the kernel is compiled, as by a test around a step of a loop."""
    begun, recording = threading.Event(), threading.Event()
    main = threading.main_thread()

    class Around(warnings.catch_warnings):
        """Of another thread, it ends only when the main thread records."""

        def __enter__(self):
            found = super().__enter__()
            if threading.current_thread() is not main:
                begun.set()
                assert recording.wait(60)
            return found

    monkeypatch.setattr(warnings, "catch_warnings", Around)

    @kernel
    def threefold_sum(values: Ints) -> int:
        total = 0
        for value in values:
            total += 3 * value
        return total

    made = []

    def compiled():
        made.append(threefold_sum(np.arange(4)))
        begun.set()

    thread = threading.Thread(target=compiled)
    thread.start()
    assert begun.wait(60)
    before = warnings.filters
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        recording.set()
        thread.join()
        warnings.warn("seen", UserWarning, stacklevel=1)
    assert made == [18]
    assert [str(w.message) for w in caught] == ["seen"]
    assert warnings.filters is before
