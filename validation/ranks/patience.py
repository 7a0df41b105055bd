"""Waiting for other ranks without waiting for ever.

While ranks measure, a rank may wait in a collective of the model that another rank, which has
failed, will never enter. The rank that fails writes so to the store of the process group; a thread
of each rank reads it there. A wait that goes through Python (FSDP over gloo) is then interrupted. A
wait inside of a kernel cannot be interrupted; its process ends with the message, as NCCL's watchdog
ends it. While steps run, a thread would cost more than they can pay: each wait looks there itself,
once it is long.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any

import torch.distributed as dist

from ..torch_private.waiting_frames import collective_that_waits
from .failures import Interrupted
from .standstill import COLLECTIVE, Standing, WaitingPlace

TURN_S = 0.25
"""Seconds of one turn of waiting, after which a rank looks whether another one has failed."""

GRACE_S = 20.0
"""Seconds that a rank gets to return from its work after another one has failed."""

TIMED_OUT = "Operation timed out"
"""The text of an error that ends a turn of waiting; the collective itself goes on."""


def wait_in_turns(wait: Any, give_up: Any) -> Any:
    """Call ``wait(timeout)`` until it returns; ``give_up()`` is called after every turn."""
    while True:
        try:
            return wait(timedelta(seconds=TURN_S))
        except RuntimeError as error:
            if TIMED_OUT not in str(error):
                raise
        give_up()


def takes_turns(timeout: Any) -> bool:
    """Whether a wait is split into turns: one with a time of its own ends by itself."""
    return timeout is None or timeout.total_seconds() <= 0


class Hearing:
    """Waits of the whole process, the loop's own among them, that end when another rank has failed.

    A rank may fail in a backward, in the loss or in the optimizer, while others wait for it in a
    collective that no plan knows of.
    """

    def __init__(self) -> None:
        self.channels: list[Any] = []
        self.lookouts: list[Lookout] = []
        self._wait: Any = None

    def add(self, channel: Any) -> None:
        """Hear of the ranks of `channel`: ``hear(standing)`` raises, ``explain(error)`` too."""
        if channel not in self.channels:
            self.channels.append(channel)
        self._begin()

    def remove(self, channel: Any) -> None:
        """Hear of its ranks no more."""
        if channel in self.channels:
            self.channels.remove(channel)

    @contextmanager
    def watched(self, lookout: Lookout) -> Iterator[None]:
        """Leave waits to `lookout`, which knows of failures without a look at the store."""
        self._begin()
        self.lookouts.append(lookout)
        try:
            yield
        finally:
            self.lookouts.remove(lookout)
            if not self.channels and not self.lookouts:
                _set_wait(self._wait)
                self._wait = None

    def _begin(self) -> None:
        if self._wait is None:
            self._wait = dist.Work.wait
            _set_wait(lambda work, timeout=None: self._waited(work, timeout))

    def _waited(self, work: Any, timeout: Any) -> Any:
        if self.lookouts and takes_turns(timeout):
            return self.lookouts[-1].waited(lambda turn: self._wait(work, turn))
        channels = [one for one in self.channels if one.is_current] if takes_turns(timeout) else []
        if not channels:
            return self._wait(work) if timeout is None else self._wait(work, timeout)
        waits = [(channel, channel.standing(_collective)) for channel in channels]

        def hear() -> None:
            for channel, standing in waits:
                channel.hear(standing)

        try:
            return wait_in_turns(lambda turn: self._wait(work, turn), hear)
        except RuntimeError as error:
            for channel, _ in waits:
                channel.explain(error)
            raise
        finally:
            for _, standing in waits:
                standing.over()


HEARING = Hearing()


def _collective() -> WaitingPlace:
    """The collective in which this thread waits, as far as its callers tell."""
    found = collective_that_waits()
    if found is None:
        return COLLECTIVE
    name, members = found
    return WaitingPlace(f"{COLLECTIVE.words} ({name})", members)


def _set_wait(wait: Any) -> None:
    work: Any = dist.Work
    work.wait = wait


class Lookout:
    """Watches whether another rank has failed, and interrupts the waits of this rank.

    Parameters
    ----------
    store
        The key-value store of the process group.
    key
        Key under which a failing rank leaves its message.
    name
        Name of this rank, for its last message.
    interrupts
        Whether waits for a collective are on the host, and are split into turns.
    standing
        Makes what each of these waits looks at, to find ranks that wait for each other.
    """

    def __init__(
        self,
        store: Any,
        key: str,
        name: str,
        *,
        interrupts: bool,
        num_ranks: int,
        standing: Callable[[Callable[[], WaitingPlace]], Standing] | None = None,
    ):
        self.store, self.key, self.name = store, key, name
        self.standing = standing or partial(Standing, None)
        self.interrupts = interrupts
        self.every_s = TURN_S * max(1.0, num_ranks / 16)
        self.failed = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="schedsim ranks", daemon=True)
        self._waits = ExitStack()

    def __enter__(self) -> Lookout:
        self._thread.start()
        if self.interrupts:
            self._waits.enter_context(HEARING.watched(self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._waits.close()
        self._over.set()
        self._thread.join()

    def waited(self, wait: Callable[[timedelta], Any]) -> Any:
        """The result of `wait` for a collective, called in turns until it is there."""
        standing = self.standing(_collective)
        try:
            return wait_in_turns(wait, partial(self._give_up, standing))
        finally:
            standing.over()

    def _give_up(self, standing: Standing) -> None:
        if self.failed.is_set():
            raise Interrupted("another rank has failed")
        line = standing.turn()
        if line is not None:
            self.store.set(self.key, line)
            raise Interrupted(line)

    def _look(self) -> None:
        while not self._over.wait(self.every_s):
            try:
                if self.store.check([self.key]):
                    break
            except RuntimeError:  # the store ended with the rank that served it
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
        # Every other way out would go through the thread that is blocked.
        sys.stderr.write(
            f"error: {message}\nhint: {self.name} waits in a collective that cannot be "
            "interrupted, and ends its process\n"
        )
        sys.stderr.flush()
        os._exit(1)
