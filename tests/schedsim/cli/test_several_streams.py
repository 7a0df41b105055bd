"""``simulate`` and ``plot`` of graphs with copies: streams, pools, capacities and traces."""

from __future__ import annotations

import gzip
import json

import pytest
from trace_rules import check_trace

from schedsim import Chain, Stage
from schedsim.cli.app import run
from schedsim.files.document import save
from schedsim.plans.links import Link, with_copies

TWO = Chain("two", 4, (Stage("s0", 1, 2, 4, 10), Stage("s1", 1, 2, 4, 10)))


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """``copies.json`` and ``runs.txt``: the bundle of the first stage goes to the host and back."""
    monkeypatch.chdir(tmp_path)
    save(with_copies(TWO, d2h=Link(4), h2d=Link(4), tensors=["r1"]), "copies.json")
    (tmp_path / "runs.txt").write_text("F0 d2h:r1 F1 loss B1 h2d:r1 B0")
    return tmp_path


@pytest.fixture
def call(capsys):
    """Run the command line: (exit code, stdout, stderr)."""

    def invoke(line: str) -> tuple[int, str, str]:
        code = run(line.split())
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return invoke


def test_streams_and_pools_are_shown(call):
    """Busy shares, reasons for idling, the peak of each pool and where tensors lie."""
    code, out, err = call("simulate copies.json --schedule runs.txt --capacity host=6")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert "runs           7, 0 recomputed, 2 copies" in lines
    assert "critical path  compute 6 s" in lines
    at = lines.index("stream   runs   busy    share  idle")
    assert lines[at + 1 : at + 4] == [
        "compute     5    6 s  100.0 %",
        "d2h         1  1.5 s   25.0 %  at the end 3.5 s, for an input 1 s",
        "h2d         1  1.5 s   25.0 %  for an input 2.5 s, at the end 2 s",
    ]
    at = lines.index("pool    peak  capacity")
    assert lines[at + 1 : at + 3] == ["device  32 B", "host     6 B       6 B"]
    assert any(line.startswith("r1@host  host    saved") for line in lines)


def test_the_document_has_streams_and_pools(call):
    """The same numbers, whole."""
    code, out, _ = call("simulate copies.json --schedule runs.txt --capacity host=6 --json")
    document = json.loads(out)
    assert code == 0
    assert (document["makespan_s"], document["num_copies"]) == (6.0, 2)
    assert document["streams"][1] == {
        "name": "d2h",
        "num_runs": 1,
        "busy_s": 1.5,
        "busy_share": 0.25,
        "idle_s": {"input": 1.0, "end": 3.5},
    }
    assert document["critical_s"] == {"compute": 6.0}
    assert document["pools"] == [
        {"name": "device", "peak_bytes": 32, "capacity_bytes": None},
        {"name": "host", "peak_bytes": 6, "capacity_bytes": 6},
    ]


def test_one_stream_stays_as_it_was(call):
    """No table of streams for a chain; the document has its one stream."""
    save(TWO, "chain.json")
    _, out, _ = call("simulate chain.json")
    assert "stream " not in out
    _, out, _ = call("simulate chain.json --json")
    (stream,) = json.loads(out)["streams"]
    assert (stream["name"], stream["busy_share"], stream["idle_s"]) == ("compute", 1.0, {})
    code, out, _ = call("simulate chain.json --capacity device=35")
    assert code == 0
    assert "device  32 B      35 B" in out


def test_getting_stuck_is_a_no(call):
    """Exit code 1, who waits for what on stderr, and what would help."""
    code, out, err = call("simulate copies.json --schedule runs.txt --capacity device=25")
    assert (code, out) == (1, "")
    assert "error: after 4 of 7 runs no other can start: schedule[4] B1 on compute waits" in err
    assert "hint: 1 B more in 'device'" in err


@pytest.mark.parametrize(
    ("line", "error", "hint"),
    [
        ("--capacity hots=1GB", "no pool 'hots'", "device, host"),
        ("--capacity host", "no pool and size", "host=64GiB"),
        ("--capacity host=8G", "'8G' is ambiguous", "8GiB"),
        ("--capacity host=1GB --capacity host=2GB", "host is given twice", "once"),
    ],
)
def test_capacities_that_cannot_be_read(call, line, error, hint):
    """What is wrong with each, as a usage error."""
    code, _, err = call(f"simulate copies.json --schedule runs.txt {line}")
    assert code == 2
    assert error in err
    assert hint in err


def test_a_trace_is_written_and_the_result_too(call, files):
    """``*.json.gz`` is a trace, ``*.json`` the result."""
    code, _, err = call("simulate copies.json --schedule runs.txt -o trace.json.gz")
    assert code == 0
    assert "ui.perfetto.dev" in err
    document = json.loads(gzip.decompress((files / "trace.json.gz").read_bytes()))
    check_trace(document)
    assert sum(event["ph"] == "X" for event in document["traceEvents"]) == 7
    assert call("simulate copies.json --schedule runs.txt -o result.json")[0] == 0
    result = json.loads((files / "result.json").read_text())
    assert result["schema"] == "schedsim.simulation/2"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gantt", "timeline"])
def test_pictures_of_several_streams(call, files, kind):
    """Both kinds, twice the same file."""
    line = f"plot {kind} copies.json --schedule runs.txt --capacity host=6 -o"
    assert call(f"{line} one.svg")[0] == 0
    assert call(f"{line} two.svg")[0] == 0
    picture = (files / "one.svg").read_bytes()
    assert picture == (files / "two.svg").read_bytes()
    assert b"d2h" in picture
    save(TWO, "chain.json")
    assert call(f"plot {kind} chain.json --mem 32 -o chain.png")[0] == 0


def test_planners_refuse_several_streams(call):
    """They would take copies for ops that must run."""
    code, _, err = call("plan copies.json --mem 32")
    assert code == 2
    assert "has several streams" in err
