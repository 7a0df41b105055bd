"""The search for schedules with copies: an interrupt ends it, and loses nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace

import pytest

import schedsim
from schedsim.api import try_plan
from schedsim.cli.app import INTERRUPTED, run
from schedsim.errors import InfeasibleBudgetError
from schedsim.files.document import save
from schedsim.plans.search import SearchRecord

SEARCH = """
import os
import signal

# A process that was started in the background of a shell is deaf to it.
signal.signal(signal.SIGINT, signal.default_int_handler)
import schedsim
from schedsim.api import try_plan
from schedsim.plans.progress import Progress

report = Progress.report

def telling(self, best_s=float("inf"), bound_s=0.0):
    report(self, best_s, bound_s)
    if best_s < float("inf"):
        os.write(1, b"found\\n")  # whole, whatever another thread of the search writes

Progress.report = telling
n = 40
chain = schedsim.Chain.from_arrays(
    "long",
    1,
    forward_s=[1 + i % 3 for i in range(n)],
    backward_s=[2] * n,
    output_bytes=[2 + i % 2 for i in range(n)],
    saved_bytes=[9 + i % 4 for i in range(n)],
)
plan = try_plan(chain, "45%", "offload", link="3B/s", effort=1e9, time_limit_s=3000.0)
assert plan.simulate(chain).peak_bytes == plan.peak_bytes <= plan.budget_bytes
print(plan.search.ended_by, plan.status)
"""


@pytest.mark.slow
def test_an_interrupt_gives_the_best_so_far():
    """As Ctrl-C sends it to a process, in the middle of a search that would take an hour."""
    with subprocess.Popen([sys.executable, "-c", SEARCH], stdout=subprocess.PIPE, text=True) as it:
        try:
            assert it.stdout.readline() == "found\n"
            it.send_signal(signal.SIGINT)
            said, _ = it.communicate(timeout=240)
        finally:
            it.kill()
    assert it.returncode == 0
    assert said.splitlines()[-1] == "interrupt feasible"


def test_an_interrupt_before_there_is_a_plan_is_no_proof(monkeypatch, capsys, tmp_path):
    """Nobody says that the workload does not fit, and no larger budget is advised."""
    chain = schedsim.Chain.from_arrays(
        "two", 4, forward_s=[1, 1], backward_s=[2, 2], output_bytes=[4, 4], saved_bytes=[10, 10]
    )
    found = replace(
        try_plan(chain, 1, "offload", link="3B/s"), search=SearchRecord(ended_by="interrupt")
    )
    assert not found.feasible
    # A module that is first imported now is to find the function itself in the other.
    for where in ("schedsim.cli.planning.one", "schedsim.api"):
        monkeypatch.setattr(f"{where}.try_plan", lambda *_, **__: found)
    with pytest.raises(InfeasibleBudgetError, match="offload was interrupted before it had a plan"):
        schedsim.plan(chain, 1, "offload", link="3B/s")
    save(chain, tmp_path / "chain.json")
    assert (
        run(["plan", str(tmp_path / "chain.json"), "--mem", "1", "--link", "3B/s"]) == INTERRUPTED
    )
    assert "error: interrupted before there was a plan" in capsys.readouterr().err
