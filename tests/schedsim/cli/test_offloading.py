"""``--link`` on the command line: plans with copies, their report, their files, refusals."""

from __future__ import annotations

import json

import pytest

import schedsim
from schedsim import Chain
from schedsim.cli.app import run as main

LINK = ["--link", "3B/s", "--host-mem", "1kB", "--host-latency", "1us"]


@pytest.fixture
def chain_file(tmp_path):
    """Equal stages whose bundles a link of three bytes a second carries."""
    chain = Chain.from_arrays(
        "bundles",
        1,
        forward_s=[1] * 6,
        backward_s=[2] * 6,
        output_bytes=[1] * 6,
        saved_bytes=[3] * 6,
    )
    path = tmp_path / "chain.json"
    schedsim.save(chain, path)
    return str(path)


@pytest.fixture
def run(capsys):
    """Run the command line: (exit code, stdout, stderr)."""

    def invoke(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return invoke


def test_a_plan_says_what_is_offloaded_and_replays(run, chain_file, tmp_path):
    """The report, the file, and `simulate` on the original workload."""
    plan_file = str(tmp_path / "plan.json")
    code, out, _ = run("plan", chain_file, "--mem", "13", *LINK, "--effort", "0.1", "-o", plan_file)
    assert code == 0
    for word in ("offloaded", "tensors", "host memory", "link busy", "exposed"):
        assert word in out
    assert "--link 3B/s --host-mem 1000 --host-latency 1us" in out.replace("1kB", "1000")
    plan = schedsim.load(plan_file)
    code, out, err = run("simulate", chain_file, plan_file, "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["makespan_s"] == plan.makespan_s
    assert document["peak_bytes"] == plan.peak_bytes <= 13
    assert document["num_copies"] > 0
    assert {pool["name"]: pool["capacity_bytes"] for pool in document["pools"]} == {
        "device": 13,
        "host": 1000,
    }


def test_a_tampered_plan_is_found_out(run, chain_file, tmp_path):
    """A link made faster in the file gives another time than the plan says."""
    plan_file = tmp_path / "plan.json"
    run("plan", chain_file, "--mem", "10", "--link", "1B/s", "--effort", "0.1",
        "-o", str(plan_file))  # fmt: skip
    document = json.loads(plan_file.read_text())
    document["setting"]["link"]["h2d"]["bytes_per_s"] = 0.1
    document["setting"]["link"]["d2h"]["bytes_per_s"] = 0.1
    plan_file.write_text(json.dumps(document))
    code, _, err = run("simulate", chain_file, str(plan_file))
    assert code == 1
    assert "step time" in err


def test_compare_has_rows_of_planners_that_offload(run, chain_file):
    """With a link they are compared; without, they are not."""
    names = "frontier,offload"
    code, out, _ = run(
        "compare", chain_file, "--mem", "13", *LINK, "--planners", names, "--effort", "0.1"
    )
    assert code == 0
    assert "offload" in out
    code, out, _ = run("compare", chain_file, "--mem", "13", "--effort", "0.1")
    assert code == 0
    assert "offload" not in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--host-mem", "1GB"], "--link"),
        (["--host-latency", "1us"], "--link"),
        (["--link", "pcie9"], "pcie4"),
        (["--link", "0GB/s"], "carries nothing"),
        (["--link", "pcie4", "--host-latency", "soon"], "10us"),
        (["--link", "pcie4", "--host-latency", "-1us"], "10us"),
        (["--link", "pcie4", "--planner", "frontier"], "does not take --link"),
        (["--planner", "offload"], "--link pcie4"),
    ],
)
def test_refusals(run, chain_file, arguments, says):
    """One error line, one hint, exit code 2, nothing planned."""
    code, out, err = run("plan", chain_file, "--mem", "13", *arguments)
    assert code == 2
    assert says in err
    assert err.startswith("error: ")
    assert not out


def test_what_cannot_take_copies_says_so(run, chain_file, tmp_path):
    """`explain` refuses such a plan; `plot` draws it."""
    plan_file, figure = str(tmp_path / "plan.json"), str(tmp_path / "gantt.svg")
    code, out, _ = run("plan", chain_file, "--mem", "13", *LINK, "--effort", "0.1", "-o", plan_file)
    assert "schedsim explain" not in out
    for command, says in (
        (["explain"], "explain takes no plan that offloads"),
        (["export", "--to", "torchtitan"], "torchtitan copies nothing to the host"),
    ):
        code, _, err = run(*command, chain_file, plan_file)
        assert code == 2
        assert says in err
    code, _, err = run("plot", "gantt", chain_file, plan_file, "-o", figure)
    assert code == 0, err
