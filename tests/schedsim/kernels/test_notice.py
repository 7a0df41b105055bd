"""That kernels are being compiled is said once, to somebody who waits."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from schedsim import kernels
from schedsim.kernels.notice import MESSAGE, CompilingNotice


@pytest.fixture(autouse=True)
def own_clock(monkeypatch):
    """Searches of other tests do not wait for kernels that are only said to be compiled."""
    monkeypatch.setattr(kernels, "compile_clock", kernels.CompileClock())


def compiling(module):
    """The event that numba sends."""
    function = SimpleNamespace(__module__=module)
    return SimpleNamespace(data={"dispatcher": SimpleNamespace(py_func=function)})


def test_it_is_logged_once_and_not_for_others(caplog):
    """What the caller compiles is none of our business."""
    notice = CompilingNotice()
    with caplog.at_level(logging.INFO, "schedsim.kernels"):
        notice.on_start(compiling("somebody.else"))
        assert not caplog.messages
        for _ in range(2):
            notice.on_start(compiling("schedsim.simulation._replay"))
    assert caplog.messages == [MESSAGE]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_is_told_on_stderr(is_terminal, capsys, monkeypatch):
    """On the command line alone: a pipe has nothing."""
    monkeypatch.setattr(kernels, "on_command_line", True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    CompilingNotice().on_start(compiling("schedsim.x"))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (MESSAGE + "\n") * is_terminal


def test_the_clock_of_searches_stands_still_meanwhile(monkeypatch):
    """From the beginning of the first compilation to the end of the last."""
    times = [10.0]
    monkeypatch.setattr(kernels.time, "perf_counter", lambda: times[0])
    notice = CompilingNotice()
    notice.on_start(compiling("schedsim.x"))
    times[0] += 7
    notice.on_end(compiling("schedsim.x"))
    times[0] += 1
    assert kernels.compile_clock.without() == 11.0
