"""Standard output holds results alone, whatever a library prints."""

from __future__ import annotations

import os
import sys


def keep_for_results() -> None:
    """Let Python alone write to standard output; what compiled code prints goes to standard error.

    HiGHS, for one, prints lines of its own at times, and would spoil a JSON document. Nothing
    changes where the process has no standard error; without standard output, results go nowhere.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - as long as the process
        return
    try:
        sys.stdout.flush()
        results = os.dup(1)
    except OSError:
        return
    try:
        os.dup2(2, 1)
    except OSError:
        os.close(results)
        return
    buffering = 1 if os.isatty(results) else -1
    encoding, errors = sys.stdout.encoding, sys.stdout.errors
    sys.stdout = os.fdopen(results, "w", buffering, encoding=encoding, errors=errors)
