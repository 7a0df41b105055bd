"""Runs the tests that start several ranks, many times beside a process that burns a core.

A collective that is not matched shows now and then, on a busy machine: one green run says little.
``python benchmarks/repeat_ranks.py --times 50`` prints a line a run, and ends with 1 where any
failed, hung or aborted.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = [
    "tests/validation/test_rematerialize_stack.py::test_distributed_data_parallel_averages_the_gradients",
    "tests/validation/test_rematerialize_stack.py::test_fully_sharded_blocks_run_at_the_block_level",
    "tests/validation/test_rematerialize_stack.py::"
    "test_the_peak_of_a_rank_with_sharded_parameters_is_below_the_plan",
    "tests/validation/ways/test_accumulate.py::test_distributed_data_parallel_averages_once_per_step",
    "tests/validation/ranks",
]


def main() -> int:
    """Repeat, count, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--burners", type=int, default=1, help="processes that burn a core")
    parser.add_argument("--nice", type=int, default=5, help="nice level of the burners")
    parser.add_argument("--limit-s", type=float, default=900.0, help="seconds a run may take")
    parser.add_argument("tests", nargs="*", default=TESTS)
    given = parser.parse_args()
    burners = [
        subprocess.Popen(["nice", "-n", str(given.nice), sys.executable, "-c", "while True: pass"])
        for _ in range(given.burners)
    ]
    bad = 0
    try:
        for number in range(given.times):
            begun = time.monotonic()
            found = run(given.tests, given.limit_s)
            bad += found != "passed"
            print(f"{number + 1:3d} {found:8s} {time.monotonic() - begun:6.1f} s", flush=True)
    finally:
        for burner in burners:
            burner.kill()
    print(f"{bad} of {given.times} runs did not pass")
    return 1 if bad else 0


def run(tests: list[str], limit_s: float) -> str:
    """One run of `tests`, with nothing measured before."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "SCHEDSIM_CACHE_DIR": folder, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()  # its own `finally` ends the ranks
            process.communicate()
            return "hung"
    if process.returncode == 0:
        return "passed"
    text = output.decode(errors="replace")
    print(text[-6000:])
    return "hung" if "the ranks hang" in text else "aborted" if "SIGABRT" in text else "failed"


if __name__ == "__main__":
    sys.exit(main())
