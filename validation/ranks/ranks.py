"""Ranks that plan together: they share what one of them knows, and all fail if one fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from schedsim.errors import SchedsimError

from .channel import Channel
from .failures import (
    agree_on,
    is_agreed,
)
from .patience import HEARING

T = TypeVar("T")


class Ranks:
    """Processes that plan one step, with a communication channel of their own.

    All ranks make all calls in the same order; `Ranks.ALONE` makes none and waits for no one. The
    channel is a gloo group beside the groups of the model, so that nothing here comes between two
    collectives of a step.

    Attributes
    ----------
    members : tuple of int
        Ranks of the default group, in order.
    bound : bool
        Whether running the model is a collective of all ranks, so that they must follow one plan.
        Otherwise each rank could follow its own plan.
    """

    def __init__(self, members: tuple[int, ...], *, bound: bool, channel: Channel | None) -> None:
        self.members, self.bound = members, bound
        self._channel = channel

    @classmethod
    def among(cls, members: tuple[int, ...], *, bound: bool) -> Ranks:
        """The given ranks, of which this process is one; all of them must call this."""
        channel = Channel.of(members)
        if bound and not torch.cuda.is_available():  # NCCL waits on the device
            HEARING.add(channel)
        return cls(members, bound=bound, channel=channel)

    @property
    def alone(self) -> bool:
        """Whether there is no other rank."""
        return self._channel is None

    def are(self, others: Ranks) -> bool:
        """Whether they are these, of one process group."""
        return self.members == others.members and self._channel is others._channel

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that acts for all."""
        return self.alone or dist.get_rank() == self.members[0]

    @property
    def place(self) -> int:
        """The place of this rank among the members."""
        return 0 if self.alone else self.members.index(dist.get_rank())

    def __deepcopy__(self, memo: Any) -> Ranks:
        return self  # a group of processes is not copied with a model

    def together(self, what: str, work: Callable[[], T], *, runs_model: bool = False) -> T:
        """Call ``work()``; if it fails on any rank, all raise, with the message of the first.

        Parameters
        ----------
        what
            What is being done, for messages: "measure", "plan".
        runs_model
            Whether the work contains collectives of the model, in which other ranks may be waiting
            when one fails.

        Raises
        ------
        Exception
            The rank's own error, or one of the same kind: if another rank failed with a
            `SchedsimError`, an error of its class; otherwise a `RankError` (for an error at run
            time) or a `RankStoppedError`.
        """
        if self._channel is None:
            return work()
        channel = self._channel
        error: BaseException | None = None
        lookout = channel.lookout(runs_model and self.bound)
        try:
            with lookout:
                found = work()
        except Exception as caught:
            if is_agreed(caught):
                raise
            error = caught
        channel.settle(what, error, may_be_blocked=runs_model and self.bound)
        return found

    @contextmanager
    def running(self, what: str) -> Iterator[None]:
        """Around a run of the model by ranks that are bound: if it fails on one, all raise.

        Nothing is exchanged where it does not fail. Where it does, collectives of the model are
        left open, and these ranks can plan together no more.

        Raises
        ------
        Exception
            The rank's own error, or a `RankError` with the message of the one that failed.
        """
        if self._channel is None or not self.bound:
            yield
            return
        with self._channel.running(what):
            yield

    @contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """As `running`, around code of bound ranks in which none waits for another."""
        if self._channel is None or not self.bound:
            yield
            return
        with self._channel.telling(what):
            yield

    @contextmanager
    def leaving(self, *, is_averaged: bool = False) -> Iterator[None]:
        """Around a step, to tell the others where it ends with an error that its loop may catch.

        Parameters
        ----------
        is_averaged
            Whether others wait for this step in averages of DistributedDataParallel.
        """
        if self._channel is None:
            yield
            return
        waits = "here" if self.bound else "below" if is_averaged else ""
        with self._channel.leaving(waits):
            yield

    def gather(self, value: Any, what: str = "agree") -> list[Any]:
        """`value` of every rank, in their order."""
        if self._channel is None:
            return [value]
        return self._channel.exchange(what, value)

    def gather_from(self, what: str, work: Callable[[], T]) -> list[T]:
        """The results of ``work()`` on all ranks; if one fails, all raise, as in `together`."""
        if self._channel is None:
            return [work()]
        try:
            value = work()
        except Exception as error:
            self._channel.settle(what, error, may_be_blocked=False)
            raise  # not reached: `together` raises
        return self._channel.exchange(what, value)

    def same(self, what: str, value: Mapping[str, Any]) -> None:
        """Raise on all ranks unless `value` has the same text on all of them.

        Raises
        ------
        SchedsimError
            The values differ; the message names the difference.
        """
        rows = self.gather({name: repr(one) for name, one in value.items()}, what)
        for rank, row in zip(self.members, rows, strict=True):
            for name, mine in rows[0].items():
                if row[name] != mine:
                    raise agree_on(
                        SchedsimError(
                            f"ranks {self.members[0]} and {rank} differ in {name}: {mine} and "
                            f"{row[name]}",
                            hint="ranks that run one schedule are given the same",
                        )
                    )

    def all(self, flag: bool, what: str = "agree") -> bool:
        """Whether `flag` holds on every rank."""
        return all(self.gather(bool(flag), what))

    def from_first(self, value: T, what: str = "agree") -> T:
        """The first rank's `value`."""
        if self._channel is None:
            return value
        return self._channel.from_first(what, value)  # type: ignore[no-any-return]

    def largest(
        self, ints: Sequence[int], floats: Sequence[float]
    ) -> tuple[list[int], list[float]]:
        """The elementwise maxima over all ranks; the lists are equally long on all."""
        if self._channel is None:
            return list(ints), list(floats)
        found: tuple[list[int], list[float]] = self._channel.largest(ints, floats)
        return found

    def awaited(self, what: str) -> None:
        """Return when all ranks have come to `what`.

        Raises
        ------
        RankError
            Some ranks have not come within `arrivals.ARRIVAL_S`; the message names them.
        """
        if self._channel is not None:
            self._channel.awaited(what)

    def meet(self) -> bool:
        """Whether all ranks come here within `MEETING_S`; the answer is the same on all that come.

        For ranks that could each go on by themselves: nobody waits for one that does not come.
        """
        return self._channel is None or self._channel.meet()


ALONE = Ranks((0,), bound=False, channel=None)
"""A single process, without other ranks."""
