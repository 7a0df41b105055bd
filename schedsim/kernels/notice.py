"""That kernels are being compiled, said once: on a terminal, or by logging."""

from __future__ import annotations

import logging
import sys
from typing import Any

from numba.core import event

from .. import kernels

MESSAGE = "compiling kernels (first run on this machine; a time limit does not count it)"

_log = logging.getLogger("schedsim.kernels")


class CompilingNotice(event.Listener):  # type: ignore[misc]
    """Says so when numba compiles the first kernel of this package in this process.

    Kernels that come from the cache are silent, and so is what the caller compiles.
    """

    said = False

    def on_start(self, compiling: Any) -> None:
        """Speak once: to somebody at the command line who waits, to anybody else's log."""
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
        """Say nothing: the answer follows. The clock of searches goes on."""
        kernels.compile_clock.stop()
