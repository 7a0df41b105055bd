"""Runs the tests that start several ranks, many times beside processes that burn a core each.

A collective that is not matched shows now and then, on a busy machine: one green run says little.
``python benchmarks/repeat_ranks.py --times 50`` runs all of them so many times, one round after the
other, and ends with 1 where one failed, hung or aborted. What a failing run left (its errors, and
the Python stacks of every rank of a run that hangs) is written to ``--keep``. Nothing that one run
measured is there in the next; each test starts processes of its own, and sees them end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STACK = "tests/validation/test_rematerialize_stack.py"
TESTS = [
    f"{STACK}::test_distributed_data_parallel_averages_the_gradients",
    f"{STACK}::test_fully_sharded_blocks_run_at_the_block_level",
    "tests/validation/ways/test_accumulate.py::test_distributed_data_parallel_averages_once_per_step",
    "tests/validation/ranks",
]


class Repeated:
    """Makes every test `times` tests, each with an empty cache of measured times."""

    def __init__(self, times: int, cache: Path, keep: Path) -> None:
        self.times, self.cache, self.keep = times, cache, keep
        self.seen = self.failed = 0

    @pytest.fixture(autouse=True)
    def _number(self, request: pytest.FixtureRequest) -> None:
        shutil.rmtree(self.cache / "profiles", ignore_errors=True)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One more parameter, the number of the repeat."""
        metafunc.fixturenames.append("_number")
        metafunc.parametrize("_number", range(self.times), indirect=True)

    def pytest_collection_modifyitems(self, items: list[pytest.Function]) -> None:
        """Round by round: a run that is cut short has seen every test."""
        items.sort(key=lambda item: item.callspec.params["_number"])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A line for each, as it may take an hour; what a failing one left, at once."""
        name = report.nodeid.rpartition("::")[2]
        if report.failed:
            self.failed += 1
            path = self.keep / f"failed-{self.failed}.txt"
            path.write_text(f"{report.nodeid} ({report.when})\n{report.longreprtext}\n")
        if report.when == "call":
            self.seen += 1
            print(f"{self.seen:4d} {report.outcome:7s} {report.duration:6.1f} s {name}", flush=True)


def main() -> int:
    """Repeat, and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--burners", type=int, default=1, help="processes that burn a core")
    parser.add_argument("--nice", type=int, default=0, help="added to the nice level of burners")
    parser.add_argument("--keep", type=Path, default=Path("repeat-ranks"), help="what failed")
    parser.add_argument("tests", nargs="*", default=TESTS)
    given = parser.parse_args()
    keep = given.keep.resolve()
    keep.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    burner = ["nice", "-n", str(given.nice), sys.executable, "-c", "while True: pass"]
    burners = [subprocess.Popen(burner) for _ in range(given.burners)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["SCHEDSIM_CACHE_DIR"] = folder  # before the ranks' parent is started
            os.environ["SCHEDSIM_RANKS_ONCE"] = "1"
            repeated = Repeated(given.times, Path(folder), keep)
            found = pytest.main(["-q", "-p", "no:cacheprovider", *given.tests], plugins=[repeated])
    finally:
        for process in burners:
            process.kill()
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
