"""``--allocator`` on the command line."""

from __future__ import annotations

import json

import pytest

from schedsim.cli.app import run

LAYERS = ("--layers", "24", "--hidden", "768", "--heads", "12", "--seq", "512")


@pytest.fixture
def call(capsys):
    """Run the command line: (exit code, stdout, stderr)."""

    def invoke(*arguments: str) -> tuple[int, str, str]:
        code = run(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return invoke


def test_simulate_tells_what_is_reserved(call):
    code, out, _ = call("simulate", *LAYERS, "--allocator", "cuda-caching")
    assert code == 0
    assert "by cuda-caching" in out
    assert "stuck" in out


def test_simulate_fails_where_the_allocator_runs_out(call):
    """The peak fits, its fragments do not."""
    code, out, _ = call("simulate", *LAYERS, "--json", "--allocator", "cuda-caching")
    peak = json.loads(out)["peak_bytes"]
    arguments = ("simulate", *LAYERS, "--mem", str(peak))
    assert call(*arguments)[0] == 0
    code, _, err = call(*arguments, "--allocator", "cuda-caching")
    assert code == 1
    assert "cuda-caching runs out of memory" in err


def test_a_plan_is_checked_with_the_allocator_it_was_made_for(call, tmp_path):
    file = tmp_path / "plan.json"
    conf = ("--allocator", "cuda-caching", "--alloc-conf", "expandable_segments:True")
    code, out, _ = call("plan", *LAYERS, "--mem", "400MB", *conf, "-o", str(file))
    assert code == 0
    assert "planned for" in out
    code, out, _ = call("simulate", *LAYERS, str(file))
    assert code == 0
    assert "by cuda-caching" in out
    document = json.loads(file.read_text())
    assert document["setting"]["allocator"]["reserved_bytes"] <= 400_000_000
    document["setting"]["allocator"]["reserved_bytes"] -= 512
    file.write_text(json.dumps(document))
    code, _, err = call("simulate", *LAYERS, str(file))
    assert code == 1
    assert "bytes reserved, the replay" in err


def test_an_infeasible_budget_names_the_allocator(call):
    code, _, err = call("plan", *LAYERS, "--mem", "10MB", "--allocator", "cuda-caching")
    assert code == 1
    assert "and the cuda-caching allocator" in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--alloc-conf", "expandable_segments:True"), "--alloc-conf belongs to"),
        (("--allocator", "buddy"), "buddy"),
        (("--allocator", "cuda-caching", "--alloc-conf", "x:1"), "not modelled"),
    ],
)
def test_what_is_refused(call, arguments, says):
    code, _, err = call("simulate", *LAYERS, *arguments)
    assert code == 2
    assert says in err


def test_fragmentation_in_the_document(call):
    _, out, _ = call("simulate", *LAYERS, "--json", "--allocator", "cuda-caching")
    found = json.loads(out)["allocations"]["device"]
    assert 0 <= found["fragmentation"] < 0.2
    assert found["peak_reserved_bytes"] >= found["requested_bytes"] > 0


def test_the_timeline_shows_what_is_reserved(call, tmp_path):
    picture = tmp_path / "timeline.svg"
    arguments = ("plot", "timeline", *LAYERS, "--mem", "400MB", "-o", str(picture))
    assert call(*arguments, "--allocator", "cuda-caching")[0] == 0
    assert "reserved by cuda-caching" in picture.read_text()
    assert call(*arguments)[0] == 0
    assert "reserved by" not in picture.read_text()
