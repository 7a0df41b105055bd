"""The page of a campaign: what its tables say of the rows."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from schedsim.validation.campaigns.campaign_page import _mb, _summary, write_page

FACTS = {"device_name": "a machine", "torch": "2.0", "threads": 1, "python": "3.11"}


def model(name="mlp") -> dict:
    return {
        "kind": "model",
        "model": name,
        "environment": FACTS,
        "num_parameters": 2_000_000,
        "static_bytes": 10**7,
        "plain": {"peak_bytes": 5 * 10**7, "step_s": {"median_s": 0.25}},
        "store_all": {"peak_bytes": 5 * 10**7},
        "curve": [(2 * 10**7, 0.4), (5 * 10**7, 0.0)],
    }


def plan(schedule="s1", *, planner="frontier", peak=2 * 10**7, **more) -> dict:
    row = {
        "kind": "plan",
        "model": "mlp",
        "level": "block",
        "schedule": schedule,
        "planner": planner,
        "environment": FACTS,
        "budget_bytes": 3 * 10**7,
        "peak_bytes": peak,
        "predicted_peak_bytes": 2 * 10**7,
        "predicted_overhead": 0.2,
        "peak_holds": True,
        "budget_holds": True,
        "runs_hold": True,
        "num_recomputed": 3,
        "num_runs": 12,
        "as_plain": "equal to the bit",
        "as_store_all": "equal to the bit",
    }
    if "overhead" in more:
        row |= {"overhead_low": more["overhead"] - 0.01, "overhead_high": more["overhead"] + 0.02}
    return row | more


def test_the_summary_counts_each_schedule_once():
    """Two rows of one schedule are one; peaks, budgets, bits and overheads are told."""
    rows = [
        plan(),
        plan(),
        plan("s2", peak=int(2.1e7), peak_holds=False, as_plain="equal within rounding",
             overhead=0.3, overhead_holds=True),
        plan("s3", as_plain="NOT equal", budget_holds=False, overhead=0.1),
    ]  # fmt: skip
    said = _summary(rows, [*rows, {"kind": "plan", "out_of_memory": True}])
    assert "- 5 rows, 3 distinct schedules" in said
    assert "2 of 3 within the tolerance; measured +0.000% to +5.000%" in said
    assert "Budget kept in 3 of 4 plans" in said
    assert "to the bit in 2 of 3, within rounding in 2" in said
    assert "Overhead: 1 of 2 within the tolerance" in said
    assert "largest 10.0" in said
    assert "1 rows ran out of memory" in said


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "out of memory"),
        (1_500_000, "1.5 MB"),
        (9_999_000_000, "9,999.0 MB"),
        (10**10, "10.00 GB"),
    ],
)
def test_sizes_are_short(size, text):
    assert _mb(size) == text


def test_a_page_is_written_for_each_device(tmp_path):
    """Its tables, its figures, and what was not run; an empty file is passed over."""
    failure = {"kind": "failure", "model": "unet", "says": "no line", "environment": FACTS}
    folklore = plan("s4", planner="chen_sqrt", budget_bytes=None, overhead=0.25)
    rows = [model(), plan(overhead=0.21), folklore, failure]
    (tmp_path / "cpu.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    (tmp_path / "empty.jsonl").write_text("\n")
    write_page(tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert "## a machine" in page
    assert "- unet: no line" in page
    assert page.count("## ") - page.count("### ") == 1
    assert "| mlp: chen_sqrt | 20.0 MB | 60.0% | 75.0% | +20.0% | +25.0% |" in page
    assert "| mlp | 30.0 MB | 20.0 MB | 20.0 MB | +20.0% | +21.0% | 3 of 12 |" in page
    assert "| mlp | 2.0 M | 10.0 MB | 50.0 MB | 50.0 MB | 250 ms | 2 | +0.000% to +0.000% |" in page
    for name in ("peak", "overhead", "frontier"):
        assert (tmp_path / f"cpu-{name}.svg").stat().st_size > 1000
        assert f"(cpu-{name}.svg)" in page
