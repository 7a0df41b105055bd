"""The command line. Everything but this file is imported when a command needs it."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line with the process's arguments, and exit."""
    from .app import run
    from .result_stream import keep_for_results

    keep_for_results()
    sys.exit(run(sys.argv[1:]))
