"""Waiting for other ranks without waiting for ever.

While ranks measure, a rank may stand in a collective of the model that another one, which has
failed, will never enter. The rank that fails says so in the store of the process group; a thread of
each rank looks there. What waits through Python (FSDP over gloo) is then interrupted; what waits
inside of a kernel cannot be, and its process ends with the message, as NCCL's watchdog ends it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch.distributed as dist

from .failures import Interrupted

TURN_S = 0.25
"""Seconds of one turn of waiting, after which it is seen whether another rank has failed."""

GRACE_S = 20.0
"""Seconds that a rank is given to come back from its work after another one has failed."""

TIMED_OUT = "Operation timed out"
"""How a wait says that its turn is over; the collective itself goes on."""


def wait_in_turns(wait: Any, give_up: Any) -> Any:
    """Call ``wait(timeout)`` until it returns; ``give_up()`` is called after every turn."""
    while True:
        try:
            return wait(timedelta(seconds=TURN_S))
        except RuntimeError as error:
            if TIMED_OUT not in str(error):
                raise
        give_up()


class Lookout:
    """Looks whether another rank has failed, and interrupts the waits of this one.

    Parameters
    ----------
    store
        The key-value store of the process group.
    key
        Under which a failing rank leaves its message.
    name
        Of this rank, for the last message.
    interrupts
        Whether waits for a collective are host-side, and are cut into turns.
    """

    def __init__(self, store: Any, key: str, name: str, *, interrupts: bool, num_ranks: int):
        self.store, self.key, self.name = store, key, name
        self.interrupts = interrupts
        self.every_s = TURN_S * max(1.0, num_ranks / 16)
        self.failed = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="schedsim ranks", daemon=True)
        self._wait: Any = None

    def __enter__(self) -> Lookout:
        self._thread.start()
        if self.interrupts:
            original = self._wait = dist.Work.wait

            def wait(work: Any, timeout: Any = None) -> Any:
                if timeout is not None and timeout.total_seconds() > 0:
                    return original(work, timeout)
                return wait_in_turns(lambda turn: original(work, turn), self._give_up)

            self._set_wait(wait)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._wait is not None:
            self._set_wait(self._wait)
        self._over.set()
        self._thread.join()

    def _set_wait(self, wait: Any) -> None:
        work: Any = dist.Work
        work.wait = wait

    def _give_up(self) -> None:
        if self.failed.is_set():
            raise Interrupted("another rank has failed")

    def _look(self) -> None:
        while not self._over.wait(self.every_s):
            try:
                if self.store.check([self.key]):
                    break
            except RuntimeError:  # the store is gone, with the rank that served it
                break
        else:
            return
        self.failed.set()
        begun = time.monotonic()
        while time.monotonic() - begun < GRACE_S:
            if self._over.wait(TURN_S):
                return
        try:
            message = self.store.get(self.key).decode(errors="replace")
        except RuntimeError:
            message = "the store of the process group is gone"
        # Every other way out is through the thread that is blocked.
        sys.stderr.write(
            f"error: {message}\nhint: {self.name} waits in a collective that cannot be "
            "interrupted, and ends its process\n"
        )
        sys.stderr.flush()
        os._exit(1)
