"""Memory tests: the peak of a step beside a limit or a file, and why it changed."""

from __future__ import annotations

from .golden_files import Golden, check_golden, read_golden, write_golden
from .peak_differences import explain_difference
from .step_peak import HeldTensor, StepPeak, step_peak

__all__ = [
    "Golden",
    "HeldTensor",
    "StepPeak",
    "check_golden",
    "explain_difference",
    "read_golden",
    "step_peak",
    "write_golden",
]
