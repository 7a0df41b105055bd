"""One plan: written, certified, printed, and what the exit code says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from four_stages import CHAIN

import schedsim
import schedsim.cli.planning.one
from schedsim.cli.app import run
from schedsim.files.document import save
from schedsim.plans.search import SearchRecord


@pytest.fixture
def chain_file(tmp_path) -> str:
    file = tmp_path / "chain.json"
    save(CHAIN, file)
    return str(file)


@pytest.fixture
def call(capsys):
    """Run the command line: (exit code, stdout, stderr)."""

    def invoke(*arguments: str) -> tuple[int, str, str]:
        code = run(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return invoke


def test_infeasible_json_is_the_plan(call, chain_file):
    """Scripts get the infeasible plan, with the least budget in it."""
    code, out, _ = call("plan", chain_file, "--mem", "10", "--json")
    plan = json.loads(out)
    assert (code, plan["status"], plan["schedule"]) == (1, "infeasible", None)
    again, _, _ = call("plan", chain_file, "--mem", str(plan["min_feasible_bytes"]))
    assert again == 0


def test_a_plan_remembers_where_its_workload_comes_from(call, folder):
    """A plan remembers the path of a file; of a formula what was given, and no default."""
    for workload, source in (
        (("chain.json",), {"kind": "file", "options": {}, "path": "chain.json"}),
        (
            ("--layers", "2", "--seq", "64"),
            {"kind": "formula", "options": {"layers": 2, "seq": 64}},
        ),
    ):
        assert call("plan", *workload, "--mem", "100%", "-o", "p.json")[0] == 0
        assert json.loads(Path("p.json").read_text())["workload"]["source"] == source


@pytest.mark.parametrize(
    ("mem", "code", "says"),
    [
        ("60", 0, "p.json proves 14 s over persistent schedules, gap 0.00 %, by"),
        ("10", 1, "p.json proves that nothing fits"),
    ],
)
def test_a_certificate_says_what_it_proves(call, folder, mem, code, says):
    """A plan's bound, or that there is no plan; both in a file."""
    got, out, _ = call("plan", "chain.json", "--mem", mem, "--certificate", "p.json")
    assert got == code
    assert f"certificate     {says}" in out
    assert json.loads(Path("p.json").read_text())


def test_a_note_on_what_cannot_matter_is_not_in_the_document(call, folder):
    """Kinds of variants that the workload lacks: said on stderr, before everything."""
    code, out, err = call("plan", "chain.json", "--mem", "60", "--allow", "quantize", "--json")
    assert code == 0
    assert json.loads(out)["status"] == "optimal"
    assert err.startswith("note: --allow quantize changes nothing")


def test_an_interrupted_search_gives_its_best_and_says_so(call, folder, monkeypatch):
    """Exit 130, whether a plan was found or not; what was found is written, and nothing else."""
    planned = schedsim.cli.planning.one.try_plan

    def interrupted(*arguments, **options):
        return replace(planned(*arguments, **options), search=SearchRecord(ended_by="interrupt"))

    monkeypatch.setattr(schedsim.cli.planning.one, "try_plan", interrupted)
    code, out, _ = call("plan", "chain.json", "--mem", "60", "-o", "best.json")
    assert code == 130
    assert "peak" in out
    assert schedsim.load("best.json").makespan_s == schedsim.plan(CHAIN, 60).makespan_s
    for more in ((), ("--json",)):
        files = ("-o", "new.json", "--certificate", "proof.json")
        code, out, err = call("plan", "chain.json", "--mem", "10", *files, *more)
        assert (code, out) == (130, "")
        assert err.strip().splitlines()[-1] == "error: interrupted before there was a plan"
        assert not Path("new.json").exists()
        assert not Path("proof.json").exists()


def test_what_is_no_plan_is_written_over(call, folder):
    """Only a good plan is kept: an infeasible plan, or anything else, makes room for one."""
    for old in ("{}", "not json"):
        Path("p.json").write_text(old)
        assert call("plan", "chain.json", "--mem", "10", "-o", "p.json")[0] == 1
        assert Path("p.json").read_text() == old  # what it is nobody knows: it is kept
    save(schedsim.api.try_plan(CHAIN, 11), "p.json")
    assert call("plan", "chain.json", "--mem", "10", "-o", "p.json")[0] == 1
    assert schedsim.load("p.json").budget_bytes == 10
    assert call("plan", "chain.json", "--mem", "60", "-o", "p.json")[0] == 0
    assert schedsim.load("p.json").feasible
