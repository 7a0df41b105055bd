"""``schedsim sweep`` over clusters, as a table."""

from __future__ import annotations

from pathlib import Path

from schedsim.cli.app import run

EXPERIMENT = """
clusters = [
    {preset = "llama3.2-1b", devices = 8, seq = 512, mem = ["20GB", "1GB"]},
    {preset = "llama3.2-1b", devices = 8, tensor = 3},
]
"""


def test_a_line_for_each_setting(tmp_path, monkeypatch, capsys):
    """What fits, what does not, and an error, whose exit code is 1."""
    monkeypatch.chdir(tmp_path)
    Path("e.toml").write_text(EXPERIMENT)
    assert run(["sweep", "e.toml", "-o", "r.jsonl", "--dry-run"]) == 0
    listed = capsys.readouterr().out
    assert listed.count(" no  ") == 3
    assert "3 runs, 1 at a time by loky" in listed
    assert run(["sweep", "e.toml", "-o", "r.jsonl"]) == 1
    out, err = capsys.readouterr()
    fits, not_fitting, failed = out.splitlines()[1:4]
    assert "fsdp 8" in fits
    assert not_fitting.endswith("does not fit")
    assert failed.endswith("error")
    assert "3 runs in r.jsonl: 1 feasible, 1 infeasible, 1 error" in out
    assert "is not a multiple of --tensor 3" in err
    Path("mixed.toml").write_text(EXPERIMENT + 'budgets = ["1GB"]')
    assert run(["sweep", "mixed.toml", "-o", "m.jsonl"]) == 2
    assert "budgets: does not go with clusters" in capsys.readouterr().err
