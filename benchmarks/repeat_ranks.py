"""Runs the tests that start several ranks, many times beside processes that burn a core each.

A collective that is not matched shows now and then, on a busy machine: one green run says little.
``python benchmarks/repeat_ranks.py --times 50`` runs every test of a file that starts ranks so many
times, one round after the other, and ends with 1 where one failed, hung or aborted. ``--tier fast``
takes the tests that run for each commit, ``--tier slow`` the others. Tests that started no process
in their first run are not run again.

A line of ``--results`` is written for each run: test, outcome, seconds, load of the machine, number
of processes, commit. A later call goes on from there, so that rounds add up over days: it runs what
is missing of ``--times``. ``--minutes`` ends a call after a whole test. ``--table`` prints the
counts of each test and runs nothing. What a failing run left (its errors, and the Python stacks of
every rank of a run that hangs) is written beside the results. Nothing that one run measured is
there in the next; each test starts processes of its own, and sees them end.

    python benchmarks/repeat_ranks.py --tier fast --minutes 60
    python benchmarks/repeat_ranks.py --table > benchmarks/results/repeat-ranks.md
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
TIERS = {"fast": ["-m", "not slow"], "slow": ["-m", "slow"], "all": ["--slow"]}
CUT_SHORT = "cut short"
"""The outcome of a run whose end nobody saw: the whole call was ended, or died, meanwhile."""


@dataclass(frozen=True)
class RankRun:
    """One run of one test.

    Attributes
    ----------
    test
        Its node, without the number of the repeat.
    outcome
        ``passed``, ``failed``, ``skipped`` or `CUT_SHORT`.
    seconds
        Of setting up, call and tearing down.
    load
        Busy processes of the machine in the last minute, when the run ended.
    num_processes
        How many ranks were started.
    commit
        What was checked out.
    """

    test: str
    outcome: str
    seconds: float
    load: float
    num_processes: int
    commit: str


def without_number(node: str) -> str:
    """The name of a test without the number of its repeat.

    Examples
    --------
    >>> without_number("tests/test_ranks.py::test_all[block-repeat12]")
    'tests/test_ranks.py::test_all[block]'
    >>> without_number("tests/test_ranks.py::test_all[repeat3]")
    'tests/test_ranks.py::test_all'
    """
    return re.sub(r"-?repeat\d+-?(?=[^\[]*\]$)", "", node).removesuffix("[]")


def files_that_start_ranks() -> list[str]:
    """Test files that use `tests/helpers/rank_processes.py`."""
    imports = re.compile(r"^\s*(from|import) rank_processes\b", re.MULTILINE)
    return [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if imports.search(path.read_text())
    ]


def read_runs(path: Path) -> list[RankRun]:
    """The runs that were recorded; a last line that was cut off is left out."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(RankRun(**json.loads(line)))
        except ValueError:
            continue
    return found


class RepeatedTests:
    """Makes every test `times` tests, each with an empty cache of measured times."""

    def __init__(self, times: int, cache: Path, results: Path, minutes: float) -> None:
        self.times, self.cache, self.results = times, cache, results
        self.ends_s = time.monotonic() + 60 * minutes
        self.begun = results.with_suffix(".begun")
        self.before = read_runs(results)
        self.num_new = self.num_failed = self.num_processes = 0
        self.commit = _commit()
        self._outcome, self._seconds = "passed", 0.0
        if self.begun.exists():
            self._record(RankRun(self.begun.read_text(), CUT_SHORT, 0.0, 0.0, 0, self.commit))
            self.begun.unlink()

    def _record(self, run: RankRun) -> None:
        with self.results.open("a") as file:
            file.write(json.dumps(asdict(run)) + "\n")

    @pytest.fixture(autouse=True)
    def _number(self, request: pytest.FixtureRequest) -> None:
        shutil.rmtree(self.cache / "profiles", ignore_errors=True)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One more parameter, the number of the repeat."""
        metafunc.fixturenames.append("_number")
        numbers = range(self.times)
        metafunc.parametrize("_number", numbers, indirect=True, ids=[f"repeat{k}" for k in numbers])

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Function]
    ) -> None:
        """What is missing, round by round: a call that is cut short has seen every test."""
        done = Counter(run.test for run in self.before if run.outcome != CUT_SHORT)
        alone = {run.test for run in self.before if not run.num_processes}
        alone -= {run.test for run in self.before if run.num_processes or run.outcome == "failed"}
        alone -= {run.test for run in self.before if run.outcome == CUT_SHORT}
        missing, enough = [], []
        for item in items:
            test, number = without_number(item.nodeid), item.callspec.params["_number"]
            (enough if number < done[test] or test in alone else missing).append(item)
        config.hook.pytest_deselected(items=enough)
        items[:] = sorted(missing, key=lambda item: item.callspec.params["_number"])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be read ends the call as a failing test does."""
        self.num_failed += report.failed

    def pytest_collection_finish(self) -> None:
        """Count the processes that tests start, where they start any."""
        ranks: Any = sys.modules.get("rank_processes")
        if ranks is None:
            return
        begin = ranks._Worker.begin

        def counted(worker: Any, *call: Any) -> None:
            self.num_processes += 1
            begin(worker, *call)

        ranks._Worker.begin = counted

    def pytest_runtest_protocol(self, item: pytest.Function) -> None:
        """Note what begins, so that a run whose end nobody sees is not forgotten."""
        self._outcome, self._seconds, self.num_processes = "passed", 0.0, 0
        self.begun.write_text(without_number(item.nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """What a failing one left, at once."""
        self._seconds += report.duration
        if report.outcome == "passed" or self._outcome == "failed":
            return
        self._outcome = report.outcome
        if report.failed:
            self.num_failed += 1
            stamp = time.strftime("%Y%m%d-%H%M%S")
            path = self.results.with_name(f"failed-{stamp}-{self.num_failed}.txt")
            path.write_text(f"{report.nodeid} ({report.when})\n{report.longreprtext}\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> Any:
        """A line for each, as a round may take an hour."""
        self.num_new += 1
        run = RankRun(
            without_number(nodeid),
            self._outcome,
            round(self._seconds, 2),
            round(os.getloadavg()[0], 1),
            self.num_processes,
            self.commit,
        )
        self._record(run)
        self.begun.unlink()
        words = f"{self.num_new:4d} {run.outcome:7s} {run.seconds:6.1f} s, load {run.load:4.1f}"
        print(f"{words}, {run.num_processes} ranks: {run.test.rpartition('::')[2]}", flush=True)
        return (yield)

    def pytest_runtest_teardown(self, item: pytest.Function) -> None:
        """Begin no other test where the time is over."""
        if time.monotonic() > self.ends_s:
            item.session.shouldstop = "the minutes are over"


def _commit() -> str:
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def table(runs: Iterable[RankRun]) -> str:
    """Counts for each test that started ranks."""
    by_test: dict[str, list[RankRun]] = {}
    for run in runs:
        by_test.setdefault(run.test, []).append(run)
    started = {
        test: some
        for test, some in sorted(by_test.items())
        if any(run.num_processes or run.outcome in ("failed", CUT_SHORT) for run in some)
    }
    every = [run for some in started.values() for run in some]
    count = Counter(run.outcome for run in every)
    lines = [
        "# Tests that start ranks, run many times",
        "",
        "Written by `python benchmarks/repeat_ranks.py --table`. A run that hangs is ended by its",
        "own test after some minutes, and counts as failed, as one whose process aborts.",
        "",
        f"{len(every)} runs of {len(started)} tests: {count['passed']} passed, {count['failed']} "
        f"failed, {count[CUT_SHORT]} cut short by the end of the whole call.",
        "",
        "| test | runs | passed | failed | cut short | median s | longest s | median load |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for test, some in started.items():
        count = Counter(run.outcome for run in some)
        ended = [run for run in some if run.outcome != CUT_SHORT]
        times, loads = ([getattr(run, what) for run in ended] for what in ("seconds", "load"))
        numbers = (
            f"{statistics.median(times):.1f} | {max(times):.1f} | {statistics.median(loads):.1f}"
            if ended
            else "| |"
        )
        lines.append(
            f"| `{test.removeprefix('tests/')}` | {len(some)} | {count['passed']} | "
            f"{count['failed']} | {count[CUT_SHORT]} | {numbers} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Repeat, and report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=50, help="runs of each test, earlier ones too")
    parser.add_argument("--tier", choices=list(TIERS), default="all")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no test after")
    parser.add_argument("--burners", type=int, default=1, help="processes that burn a core")
    parser.add_argument("--nice", type=int, default=0, help="added to the nice level of burners")
    parser.add_argument("--results", type=Path, default=Path("repeat-ranks/runs.jsonl"))
    parser.add_argument("--table", action="store_true", help="print the counts, run nothing")
    parser.add_argument("tests", nargs="*", help="by default all files that start ranks")
    given = parser.parse_args()
    results = given.results.resolve()
    if given.table:
        print(table(read_runs(results)), end="")
        return 0
    results.parent.mkdir(parents=True, exist_ok=True)
    tests = given.tests or files_that_start_ranks()
    os.chdir(ROOT)
    burner = ["nice", "-n", str(given.nice), sys.executable, "-c", "while True: pass"]
    burners = [subprocess.Popen(burner) for _ in range(given.burners)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["SCHEDSIM_CACHE_DIR"] = folder  # before the ranks' parent is started
            os.environ["SCHEDSIM_RANKS_ONCE"] = "1"
            repeated = RepeatedTests(given.times, Path(folder), results, given.minutes)
            options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", *TIERS[given.tier]]
            found = pytest.main([*options, *tests], plugins=[repeated])
    finally:
        for process in burners:
            process.kill()
    # Nothing is left to run, or the minutes are over: what ran has passed.
    over = (pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.INTERRUPTED)
    return int(found not in (pytest.ExitCode.OK, *over) or repeated.num_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
