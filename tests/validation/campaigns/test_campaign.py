"""The campaign: rows, resuming, memory that runs out, the page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.campaigns import campaign  # noqa: E402
from schedsim.validation.steps import MeasuredSteps  # noqa: E402

ROOT = Path(__file__).parents[3]
CASES = [
    campaign.Case("tiny MLP", "model:mlp,layers=6,hidden=32,batch=64", segments=(3,)),
    campaign.Case("tiny U-Net", "model:unet,levels=2,width=4,image=16,batch=1"),
]


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Two tiny models, and a cache of their own."""
    monkeypatch.setenv("SCHEDSIM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(campaign, "cpu_cases", lambda: CASES)
    return tmp_path / "results"


def rows_of(folder):
    return [json.loads(line) for line in (folder / "cpu.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_campaign_is_run_once_and_resumed(small, capsys):
    """A row per planner and budget; a second call runs nothing; the page has its tables."""
    said = []
    assert campaign.run_campaign("cpu", small, seconds=0.1, log=said.append) == 0
    rows = rows_of(small)
    plans = [row for row in rows if row["kind"] == "plan" and row["model"] == "tiny MLP"]
    planners = {row["planner"] for row in plans}
    assert {"frontier", "rotor", "periodic", "3 segments", "every block replayed"} <= planners
    run = [row for row in plans if "peak_bytes" in row]
    assert all(row["peak_holds"] and row["runs_hold"] for row in run)
    assert all(row["as_plain"].startswith("equal to the bit") for row in run)
    assert all(row["budget_holds"] for row in run if row["budget_bytes"] is not None)
    assert any(row["status"] == "infeasible" for row in plans)
    page = (small / "README.md").read_text()
    assert "tiny MLP: 3 segments" in page
    assert (small / "cpu-frontier.svg").stat().st_size > 1000
    said.clear()
    campaign.run_campaign("cpu", small, seconds=0.1, log=said.append)
    assert len(said) == 1
    assert rows_of(small) == rows


@pytest.mark.slow
def test_memory_that_runs_out_is_a_row(small, monkeypatch):
    """The plain model and store-all do not fit: the other schedules are run all the same."""
    step = MeasuredSteps.step

    def failing(self, which):
        if which in ("plain", "store_all"):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return step(self, which)

    monkeypatch.setattr(MeasuredSteps, "step", failing)
    assert campaign.run_campaign("cpu", small, seconds=0.1, log=lambda _: None) == 0
    plans = [row for row in rows_of(small) if row["kind"] == "plan"]
    assert any("out_of_memory" in row for row in plans)
    assert any(row.get("peak_holds") for row in plans)
    assert "ran out of memory" in (small / "README.md").read_text()


@pytest.mark.slow
def test_it_runs_from_a_bare_checkout(tmp_path):
    """No installation: the folders of the checkout are enough, without rich or ortools."""
    script = (
        "import sys, runpy\n"
        "sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f).lower()]\n"
        "sys.modules['rich'] = sys.modules['ortools'] = None\n"
        "sys.argv = ['run_campaign.py', '--only', 'no such model', '--device', 'cpu', "
        f"'-o', {str(tmp_path)!r}]\n"
        f"sys.path.insert(0, {str(ROOT / 'validation')!r})\n"
        f"runpy.run_path({str(ROOT / 'validation' / 'run_campaign.py')!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "README.md").exists()
