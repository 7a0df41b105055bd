"""The pytest plugin of schedsim: `schedsim_peak`, memory tests of training steps.

A module of its own, outside of the package: pytest imports it in every run, and it imports nothing
until a test asks for the fixture.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from schedsim.validation.memory_tests import StepPeak

FOLDER = "schedsim_peaks"
"""Beside the test files: a folder of golden files."""

_less: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--schedsim-update``."""
    parser.getgroup("schedsim").addoption(
        "--schedsim-update",
        action="store_true",
        help="write the golden files of schedsim_peak.check anew",
    )


class PeakTester:
    """The fixture `schedsim_peak`: the peak of a step, and its check against a golden file."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._update = bool(request.config.getoption("--schedsim-update"))
        self._file = Path(request.node.path)
        self._root = Path(request.config.rootpath)
        self._test = str(request.node.name)
        self._used: set[Path] = set()

    def __call__(self, *step: Any, **options: Any) -> StepPeak:
        """The peak of one training step; see `schedsim.validation.memory_tests.step_peak`."""
        from schedsim.validation.memory_tests import step_peak

        return step_peak(*step, **options)

    def check(
        self, *step: Any, allowed: str | int = 0, name: str | None = None, **options: Any
    ) -> StepPeak:
        """Fail where the peak is over the one in the test's golden file, and say by what tensors.

        Parameters
        ----------
        step, options
            As for the peak itself: ``model, inputs, loss``.
        allowed
            Growth that passes: bytes, ``"10MB"`` or ``"1%"``.
        name
            Of the file, where one test checks several steps.
        """
        from schedsim.validation.memory_tests import check_golden, read_golden, write_golden

        __tracebackhide__ = True
        peak = self(*step, **options)
        path = self._path(name)
        shown = path.relative_to(self._root) if path.is_relative_to(self._root) else path
        if path in self._used:
            pytest.fail(f"{shown} is used twice in one test: give each check a name", pytrace=False)
        self._used.add(path)
        if self._update:
            write_golden(peak, path)
            return peak
        if not path.is_file():
            pytest.fail(f"there is no {shown}: --schedsim-update writes it", pytrace=False)
        lines = check_golden(peak, path, allowed)
        if lines:
            pytest.fail("\n".join([f"{shown}: {lines[0]}", *lines[1:]]), pytrace=False)
        less = read_golden(path).peak.total_bytes - peak.total_bytes
        if less > 0:
            _less.append(f"{shown}: {less} bytes less than accepted; --schedsim-update keeps that")
        return peak

    def _path(self, name: str | None) -> Path:
        plain = re.sub(r"[^\w.-]+", "-", self._test).strip("-.")
        plain = f"{plain}.{name}" if name else plain
        return self._file.parent / FOLDER / self._file.stem / f"{plain}.json"


@pytest.fixture
def schedsim_peak(request: pytest.FixtureRequest) -> PeakTester:
    """The peak of a training step, on any machine: ``schedsim_peak(model, inputs, loss)``."""
    return PeakTester(request)


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Say of a peak over its limit where it is and who holds it."""
    module = sys.modules.get("schedsim.validation.memory_tests.step_peak")
    if module is None or not isinstance(left, module.StepPeak):
        return None
    return [f"{left!r} {op} {right!r}", *left.lines()]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List the steps that take less than their files say."""
    for line in _less:
        terminalreporter.write_line(f"schedsim: {line}")
    _less.clear()
