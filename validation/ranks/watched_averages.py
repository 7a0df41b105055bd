"""Ranks that wait in averages of gradients for another one that has left the step by an error.

DistributedDataParallel waits inside of autograd's engine, where no Python runs. So a thread looks,
now and then, whether another rank has said that it left a step; where this rank stands in a
backward as long as that one stays away, its process ends with the message, as NCCL's watchdog ends
it.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import Any

from ..torch_private.waiting_frames import is_in_engine
from .standstill import Absence

EVERY_S = 5.0
"""Seconds between two looks: they cost a message each."""


class WatchedAverages:
    """Watches for the rank of `channel`, whose main thread trains."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._main = threading.main_thread().ident
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="schedsim averages", daemon=True)
        self._thread.start()
        # A daemon in C++ when the interpreter ends would abort the process.
        atexit.register(self.end)

    def end(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        try:
            self._look_on()
        finally:
            atexit.unregister(self.end)  # it holds the channel, and with it the process group

    def _look_on(self) -> None:
        absence, seen = Absence(self._channel.board), -1
        while not self._over.wait(EVERY_S) and self._channel.is_current:
            stands = self._main is not None and is_in_engine(self._main)
            if not stands or self._channel.num_steps != seen:
                absence, seen = Absence(self._channel.board), self._channel.num_steps  # it goes on
                continue
            try:
                line = absence.turn()
            except RuntimeError:  # the store ended with the rank that served it
                return
            if line is not None:
                _end_process(self._channel.rank, line)


def _end_process(rank: int, line: str) -> None:
    sys.stderr.write(
        f"error: {line}\nhint: rank {rank} waits for it in an average of gradients that cannot be "
        "interrupted, and ends its process; let such an error end the loop on all ranks\n"
    )
    sys.stderr.flush()
    os._exit(1)
