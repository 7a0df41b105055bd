"""The notice that kernels are being compiled, given once: on a terminal, or by logging."""

from __future__ import annotations

import logging
import sys
from typing import Any

from numba.core import event

from .. import kernels

MESSAGE = "compiling kernels (first run on this machine; a time limit does not count it)"

_log = logging.getLogger("schedsim.kernels")


class CompilingNotice(event.Listener):  # type: ignore[misc]
    """Gives a notice when numba compiles the first kernel of this package in this process.

    Kernels loaded from the cache give no notice, and neither do kernels of other packages.
    """

    said = False

    def on_start(self, compiling: Any) -> None:
        """Give the notice once: on the terminal for the command line, by logging for others."""
        module = compiling.data["dispatcher"].py_func.__module__
        kernels.compile_clock.start()
        if self.said or not module.startswith("schedsim."):
            return
        self.said = True
        if kernels.on_command_line and sys.stderr.isatty():
            print(MESSAGE, file=sys.stderr, flush=True)
        else:
            _log.info(MESSAGE)

    def on_end(self, compiled: Any) -> None:
        """Restart the clock of searches; there is nothing to say."""
        kernels.compile_clock.stop()
