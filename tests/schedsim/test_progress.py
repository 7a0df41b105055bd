"""Long searches tell their time, best and gap: to a terminal, or to the log."""

from __future__ import annotations

import logging
import math
import os
import pty
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import schedsim
from schedsim.plans import progress
from schedsim.plans.progress import Progress, current, searching, watched

ROOT = Path(__file__).parents[2]
CHAIN = schedsim.Chain.from_arrays(
    "two", 4, forward_s=[1, 1], backward_s=[2, 2], output_bytes=[4, 4], saved_bytes=[10, 10]
)


def test_the_best_and_the_bound_only_get_better():
    """Reports come from threads, in any order: the least time and the largest bound count."""
    found = Progress("x")
    assert found.gap is None
    workers = [
        threading.Thread(target=found.report, kwargs={"best_s": 2.0 + k, "bound_s": 1.6 - k})
        for k in range(8)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert (found.best_s, found.bound_s) == (2.0, 1.6)
    assert found.gap == pytest.approx(0.25)  # 2 / 1.6 - 1
    assert re.fullmatch(r"\d+ s, best 2 s, gap 25.00 %", str(found))


def test_what_is_not_known_is_not_said():
    """Without a bound no gap; without a schedule no best; an infinite bound is no number."""
    found = Progress("x")
    assert re.fullmatch(r"\d+ s", str(found))
    found.report(bound_s=2.0)
    assert re.fullmatch(r"\d+ s, nothing fits yet", str(found))
    found.report(bound_s=math.inf)
    assert found.gap is None


def test_planners_report_to_the_search_that_called_them():
    """Nested searches each have their own; outside of any, nobody hears."""
    with watched() as running:
        with searching("outer") as outer:
            with searching("inner") as inner:
                current().report(best_s=1.0)
                assert running == [outer, inner]
            assert current() is outer
        assert running == []
    assert (inner.best_s, outer.best_s) == (1.0, math.inf)
    current().report(best_s=0.5)
    assert inner.best_s == 1.0


@pytest.mark.slow
def test_a_search_on_a_graph_reports_its_best_and_its_bound(caplog, monkeypatch):
    """What is told at the end is what the plan says; where no terminal is, the log has it."""
    monkeypatch.setattr(progress, "_LOG_EVERY_S", 0.0)
    seen: list[Progress] = []

    class Recorded(Progress):
        def __init__(self, what: str) -> None:
            super().__init__(what)
            seen.append(self)

    monkeypatch.setattr(progress, "Progress", Recorded)
    chain = schedsim.Chain.from_arrays(
        "eight", 1, forward_s=[1] * 8, backward_s=[2] * 8, output_bytes=[1] * 8, saved_bytes=[3] * 8
    )
    with caplog.at_level(logging.INFO, logger="schedsim.progress"):
        plan = schedsim.plan(chain.graph, "60%", "local_search", time_limit_s=1.0, seed=1)
    assert seen[0].best_s == pytest.approx(plan.makespan_s)
    assert 0 < seen[0].bound_s <= plan.lower_bound_s * (1 + 1e-9)
    said = [record.getMessage() for record in caplog.records]
    assert said[-1].startswith("eight within ")
    assert re.search(r"by local_search: \d+ s, best [\d.]+ s, gap [\d.]+ %$", said[-1])


@pytest.mark.slow
def test_a_terminal_shows_it(tmp_path):
    """Under a pseudo-terminal a search of three seconds has a line with time, best and gap."""
    script = tmp_path / "search.py"
    script.write_text(
        "import time\n"
        "from schedsim.cli.show import working\n"
        "from schedsim.plans.progress import current, searching\n"
        "with working('planning'), searching('x'):\n"
        "    current().report(best_s=3.0, bound_s=2.0)\n"
        "    time.sleep(3)\n"
    )
    master, slave = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        [sys.executable, str(script)], stderr=slave, stdout=subprocess.DEVNULL, env=env
    ) as process:
        os.close(slave)
        text, until = b"", time.monotonic() + 60
        while time.monotonic() < until:
            try:
                part = os.read(master, 4096)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            text += part
        process.wait(timeout=60)
    os.close(master)
    assert process.returncode == 0
    assert re.search(rb"planning: \d s, best 3 s, gap 50\.00 %", text)


@pytest.mark.slow
def test_a_pipe_has_nothing_unless_it_is_asked_for():
    """Without a terminal stderr is empty; SCHEDSIM_LOG=info sends the log there."""
    code = (
        "import schedsim.plans.progress as p; p._LOG_EVERY_S = 0.0; import sys; "
        "from schedsim.cli.app import run; "
        "sys.exit(run('plan --layers 2 --granularity op --mem 70% --time-limit 0.5'.split()))"
    )
    found = {}
    for level in ("", "info"):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "SCHEDSIM_LOG": level}
        found[level] = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            timeout=240,
            env=env,
        ).stderr
    assert found[""] == ""
    assert "schedsim.progress" in found["info"]
