"""The claims of papers/: counted, computed and not asserted, and as the summary says."""

from __future__ import annotations

import ast
import doctest
import json
import re
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from chains import INSTANCES

sys.path.insert(0, str(Path(__file__).parents[2] / "papers"))

import _claims
import run_all
from _claims import (
    AGREE,
    CHECK,
    DIFFER,
    NOT_HERE,
    VERDICTS,
    Claim,
    Instances,
    as_markdown,
    find_instances,
    load_source,
)
from tiers import slow_where

PAPERS = run_all.HERE
RESULTS = run_all.read_results()
FOLDERS = run_all.folders()
FAST = [folder for folder in FOLDERS if load_source(folder).SOURCE.fast]


def made(**more: object) -> Claim:
    fields = {"what": "x", "claimed": 10.0, "ours": 10.0, "seen": "text"}
    return Claim(**(fields | more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ours", "within", "relation", "verdict"),
    [(10, 0, "equal", AGREE), (10.4, 0, "equal", DIFFER), (10.4, 0.5, "equal", AGREE),
     (9.4, 0.5, "equal", DIFFER), (9, 0, "at most", AGREE), (10.1, 0, "at most", DIFFER),
     (11, 0, "at least", AGREE), (9.9, 0, "at least", DIFFER), (9.9, 0.2, "at least", AGREE)],
)  # fmt: skip
def test_a_verdict_follows_from_the_numbers(ours, within, relation, verdict):
    """Within the tolerance, on the side that the source allows."""
    assert made(ours=ours, within=within, relation=relation).verdict == verdict


def wrong_values(claim: Claim) -> list[float]:
    """Values of ours, on each side that the source forbids, that are just too far from its."""
    step = claim.within * 1.01 + 1e-6 * max(abs(claim.claimed), 1)
    found = []
    if claim.relation != "at least":
        found.append(claim.claimed + step)
    if claim.relation != "at most":
        found.append(claim.claimed - step)
    return found


RIGHT = [c for claims in RESULTS.values() for c in claims if c.verdict in (AGREE, CHECK)]


def test_every_verdict_can_fail():
    """Each relation is tried with a wrong value: it differs, a check of ours too."""
    assert len(RIGHT) > 300
    for claim in RIGHT:
        tried = wrong_values(claim)
        assert len(tried) == (2 if claim.relation == "equal" else 1)
        for value in tried:
            assert replace(claim, ours=value).verdict == DIFFER, claim.what


def test_no_tolerance_lets_everything_agree():
    """It is less than a quarter of the number, or of a percentage point's print near zero."""
    loose = [c.what for c in RIGHT if c.within > max(0.25 * abs(c.claimed), 0.05)]
    assert [what for what in loose if "a constant more than" not in what] == []


def test_a_check_of_ours_is_no_agreement():
    """What holds by construction is counted apart, says why, and differs if it fails."""
    assert made(check="built in").verdict == CHECK
    assert made(check="built in", ours=11).verdict == DIFFER
    assert made(check="built in", ours=None, why="no such machine").verdict == NOT_HERE
    by_construction = [c for c in RIGHT if c.relation == "at least" and c.claimed == 1]
    ratios = [c for c in by_construction if "over" in c.what and "optimum" in c.what]
    assert len(ratios) == 7
    assert {c.verdict for c in ratios} == {CHECK}


def test_the_readme_counts_what_the_results_hold():
    """Its numbers of claims by verdict, and of peers by plan, are those of the files."""
    readme = (PAPERS.parent / "README.md").read_text().replace("\n", " ")
    claims = [c for some in RESULTS.values() for c in some]
    counts = {verdict: sum(c.verdict == verdict for c in claims) for verdict in VERDICTS}
    assert (
        f"{len(claims)} numbers were checked, from {len(RESULTS) - 1} sources and from claims "
        f"repeated without a source: {counts[AGREE]} agree, {counts[DIFFER]} differ, "
        f"{counts[NOT_HERE]} cannot be reproduced here. "
        f"The other {counts[CHECK]} are our own checks"
    ) in readme
    rows = (PAPERS.parent / "benchmarks/results/peers.jsonl").read_text().splitlines()
    peers = [row for row in map(json.loads, rows) if "over_peer" in row.get("ours", {})]
    peers = [row for row in peers if "lost" not in row["gradients"]]
    ratios = sorted(row["ours"]["over_peer"]["median"] for row in peers)
    more = {
        plan: sum(row[plan].get("extra_flops", 9) > row["extra_flops"] + 1e-9 for row in peers)
        for plan in ("ours", "by_operations")
    }
    assert f"At all {len(peers)} measured settings of peers" in readme
    assert f"({ratios[0]:.2f} to {ratios[-1]:.2f} of the peer's time, median" in readme
    assert f"median {statistics.median(ratios):.2f})" in readme
    assert f"At {more['ours']} of the settings it repeats more operations than the peer" in readme
    timed = [
        row["by_operations"]["over_peer"] for row in peers if row["by_operations"].get("over_peer")
    ]
    assert f"repeats more than the peer at {more['by_operations']} settings." in readme
    medians = [one["median"] for one in timed]
    span = f"{min(medians):.2f} to {max(medians):.2f} of the peer's time"
    assert f"is also faster at all {len(timed)} ({span})" in readme
    assert max(medians) < 1
    assert max(ratios) < 1
    assert len(timed) >= len(peers) - 1


def test_examples_of_the_claims():
    """Those in the docstrings."""
    told = doctest.testmod(_claims)
    assert told.attempted
    assert not told.failed


def test_without_a_number_there_must_be_a_reason():
    """Not reproducible here is a verdict of its own, and says why."""
    assert made(ours=None, why="no such machine").verdict == NOT_HERE
    with pytest.raises(ValueError, match="no reason"):
        made(ours=None)
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="our number"):
            made(ours=value)
    with pytest.raises(ValueError, match="seen"):
        made(seen="somewhere")


def test_twenty_sources_and_sixty_numbers():
    """As many sources, and numbers of theirs that were computed here."""
    assert set(RESULTS) == {folder.name for folder in FOLDERS}
    assert len(RESULTS) >= 20
    computed = [c for claims in RESULTS.values() for c in claims if c.ours is not None]
    printed = [c for c in computed if c.seen in ("text", "abstract")]
    assert len(printed) >= 60
    for name, claims in RESULTS.items():
        assert any(claim.ours is not None for claim in claims), name


def test_the_file_holds_the_verdicts_that_follow():
    """A verdict in the file is that of its numbers."""
    for line in run_all.RESULTS.read_text().splitlines():
        row = json.loads(line)
        assert row["verdict"] == run_all.from_dict(row).verdict
    assert run_all.as_lines(RESULTS) == run_all.RESULTS.read_text()


def test_the_summary_is_what_the_results_say():
    """The table of papers/README.md, and that of every note."""
    text = (PAPERS / "README.md").read_text()
    assert run_all.between(text, "summary", run_all.summary(RESULTS)) == text
    for name, claims in RESULTS.items():
        note = (PAPERS / name / "README.md").read_text()
        assert run_all.between(note, "claims", as_markdown(claims)) == note, name
        assert (PAPERS / name / "figure.svg").exists(), name


@pytest.mark.parametrize(
    "folder",
    slow_where(FAST, lambda folder: folder.name == "griewank-walther-2000"),
    ids=lambda folder: folder.name,
)
def test_what_is_fast_comes_out_again(folder):
    """Claims run now are those of the file, number by number."""
    found = list(load_source(folder).claims(Instances(None)))
    written = [as_tuple(claim) for claim in RESULTS[folder.name]]
    assert [as_tuple(claim) for claim in found] == written


def as_tuple(claim: Claim) -> tuple[object, ...]:
    ours = None if claim.ours is None else pytest.approx(claim.ours, rel=1e-6, abs=1e-8)
    return claim.what, claim.claimed, ours, claim.relation, claim.seen, claim.verdict


@pytest.mark.skipif(
    not (INSTANCES / "dag" / "ku_unet_train.json").exists(),
    reason="the graphs that are not ours are not here (set SCHEDSIM_INSTANCES)",
)
def test_instances_are_read_from_the_folder_named():
    """The nodes of the published graphs, as the file has them."""
    found = load_source(PAPERS / "kusumoto-2019").claims(find_instances(str(INSTANCES)))
    for claim in RESULTS["kusumoto-2019"][:4]:
        assert as_tuple(next(found)) == as_tuple(claim)


def test_a_folder_without_instances_is_refused(tmp_path):
    """One line, not a traceback."""
    with pytest.raises(SystemExit, match="no folders dag and chain"):
        find_instances(str(tmp_path))


MAKERS = ("Claim", "published")
"""What makes a claim, of arguments that are all named."""


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_no_number_of_ours_is_written_down(folder):
    """`ours` is never a constant but None, and nothing sets a verdict."""
    tree = ast.parse((folder / "reproduce.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    claims = [node for node in calls if getattr(node.func, "id", "") in MAKERS]
    assert claims
    for call in claims:
        arguments = {keyword.arg: keyword.value for keyword in call.keywords}
        assert not call.args
        assert "verdict" not in arguments
        names = [node for node in ast.walk(arguments["ours"]) if isinstance(node, ast.Name)]
        literal = isinstance(arguments["ours"], ast.Constant)
        assert names or (literal and arguments["ours"].value is None), ast.unparse(call)
        # Nor is it the claimed number under another name.
        assert ast.dump(arguments["ours"]) != ast.dump(arguments["claimed"])


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_note_says_what_a_note_must(folder):
    """Claim and what came of it; its picture."""
    text = (folder / "README.md").read_text()
    assert text.startswith("# ")
    assert "](figure.svg)" in text
    if folder.name != "repeated-claims":
        assert "**Claim.**" in text
        assert re.search(r"\*\*(Their n|N)otation", text)
        assert "**Not " in text
