"""The channel of ranks that plan together: small messages, and an error of one that ends all."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..torch_private.checkpoint_frames import ends_recomputation
from ..torch_private.process_groups import default_group, default_store
from ..torch_private.prompt_buffers import lent_to
from ..torch_private.prompt_messages import prompt_messages
from . import arrivals
from .arrivals import Notice, await_arrivals
from .failures import (
    Interrupted,
    RankError,
    agree_on,
    heard,
    is_agreed,
    mark_elsewhere,
    told,
)
from .last_words import forget, tell_before_the_end
from .patience import GRACE_S, HEARING, TURN_S, Lookout, wait_in_turns
from .standstill import Board, Standing, WaitingPlace
from .watched_averages import WatchedAverages

T = TypeVar("T")

MEETING_S = 10.0
"""Seconds for which ranks wait for others with which they may plan, or may not."""
_RUN_FAILED = "run failed"
"""Key of the message of a rank whose run of the model failed."""

_SHORT_BYTES, _SIZE_BYTES = 1024, 8
"""Bytes of the first message of an exchange, and those at its front that say how long it is."""

LAST_WORDS_S = 2.0
"""Seconds in which a rank that has failed says so: its connections may end before."""


def _is_lost_connection(error: Exception) -> bool:
    """Whether gloo raised `error` because another rank is gone."""
    return isinstance(error, RuntimeError) and _names_connection(str(error))


def _names_connection(words: str) -> bool:
    return "onnection" in words


class Channel:
    """The channel of one group: ranks gather small objects, and an error of one ends all."""

    known: ClassVar[dict[tuple[int, ...], Channel]] = {}
    left_open: ClassVar[list[Any]] = []  # groups of broken channels, which are never freed

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members = members
        self.rank = dist.get_rank()
        store = default_store()
        key = f"schedsim/come/{default_group().group_name}/{','.join(map(str, members))}"
        await_arrivals(store, key, members, self.rank)
        self.group: Any = dist.new_group(
            list(members), backend="gloo", use_local_synchronization=True
        )
        prefixed: Any = dist.PrefixStore  # type: ignore[attr-defined]
        self.store = prefixed(f"schedsim/{self.group.group_name}", store)
        self.turn = 0  # number of exchanges; the same on all ranks
        self.phase = 0  # number of times that collectives of the model were to run
        self.num_meetings = 0
        self.broken = ""
        self.is_watched = False  # whether a lookout is on
        self.doing = ""  # what is exchanged
        self.notice: Notice | None = None  # of ranks that are waited for
        self.world = default_group()
        # Where there are other ranks beside these, some may wait for them.
        is_world = len(members) == dist.get_world_size()
        self.board = Board(self.store, members, self.rank) if is_world else None
        self.num_steps = 0  # that this rank has begun
        self.absences: WatchedAverages | None = None
        tell_before_the_end(self.ends)

    @classmethod
    def of(cls, members: tuple[int, ...]) -> Channel:
        """The channel of these ranks, made once for each default group."""
        found = cls.known.get(members)
        if found is None or not found.is_current:
            for channel in [one for one in cls.known.values() if not one.is_current]:
                HEARING.remove(channel)
                forget(channel.ends)
                if channel.broken:
                    # Its threads may wait for each other's ranks for good, and freeing would too.
                    cls.left_open += [channel.world, channel.group]
            cls.known = {key: one for key, one in cls.known.items() if one.is_current}
            found = cls.known[members] = cls(members)
        return found

    def lookout(self, is_needed: bool) -> Any:
        """A context manager to enter around work in which collectives of the model run."""
        if not is_needed:
            return nullcontext()
        self.phase += 1
        return self._watched(self._failed_key)

    @contextmanager
    def _watched(self, key: str) -> Iterator[None]:
        interrupts = not torch.cuda.is_available()  # NCCL waits on the device
        name, num = f"rank {self.rank}", len(self.members)
        was, self.is_watched = self.is_watched, True
        try:
            lookout = Lookout(
                self.store,
                key,
                name,
                interrupts=interrupts,
                num_ranks=num,
                standing=self.standing,
            )
            with lookout, prompt_messages() if interrupts else nullcontext():
                yield
        finally:
            self.is_watched = was

    @contextmanager
    def running(self, what: str) -> Iterator[None]:
        """Around a run of the model; an error is told, and errors of others are raised."""
        if self.is_watched:  # who watches tells
            yield
            return
        try:
            with self._watched(_RUN_FAILED):
                yield
        except Interrupted as error:
            raise self._run_ended() from error
        except Exception as error:
            self._tell(what, error)
            raise

    @contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """As `running`, in code that waits for no other rank."""
        try:
            yield
        except Exception as error:
            if not self.is_watched:
                self._tell(what, error)
            raise

    def _tell(self, what: str, error: Exception) -> None:
        if is_agreed(error) or ends_recomputation(error):
            return
        self.explain(error)
        self.broken = self.broken or "a step failed between two collectives of the model"
        self._stop(f"rank {self.rank} failed to {what}: {type(error).__name__}: {error}")
        agree_on(error)

    def _stop(self, line: str) -> None:
        with suppress(RuntimeError):  # the store may be gone
            if not self._run_failed():
                self.store.set(_RUN_FAILED, line)

    @property
    def is_current(self) -> bool:
        """Whether the process group is the one in which the ranks met: else its store is gone."""
        return dist.is_initialized() and default_group() is self.world

    def ends(self, how: str) -> str | None:
        """Tell the others that this process ends; what one has said that is lost to it."""
        if not self.is_current:
            return None
        heard = None
        if _names_connection(how) and self._run_failed(LAST_WORDS_S):
            with suppress(RuntimeError):  # the store may be gone
                heard = str(self.store.get(_RUN_FAILED).decode(errors="replace"))
        self._stop(f"rank {self.rank} {how}")
        return heard

    def standing(self, where: WaitingPlace | Callable[[], WaitingPlace]) -> Standing:
        """What a wait of this rank looks at, to find ranks that wait for each other."""
        return Standing(self.board, where)

    @contextmanager
    def leaving(self, waits: str) -> Iterator[None]:
        """Around a step: others wait for it in Python, "below" it, or not at all (empty)."""
        self.num_steps += 1
        if self.board is None or not self.is_current:
            yield
            return
        if waits == "below" and self.absences is None:
            self.absences = WatchedAverages(self)
        with suppress(RuntimeError):  # the store may be gone
            self.board.come_back()
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            if waits:
                with suppress(RuntimeError):
                    self.board.leave(f"{type(error).__name__}: {error}")
            raise

    def hear(self, standing: Standing) -> None:
        """Raise where a rank has failed, or no rank goes on; called after each turn of a wait."""
        if self._run_failed():
            raise self._run_ended()
        line = None
        with suppress(RuntimeError):  # the store may be gone
            line = standing.turn()
        if line is not None:
            self._stop(line)
            raise self._run_ended()

    def explain(self, error: Exception) -> None:
        """Raise what a rank has said before `error` showed that it is gone, if anything."""
        if _is_lost_connection(error) and self._run_failed(LAST_WORDS_S):
            raise self._run_ended() from error

    def _run_failed(self, patience_s: float = 0.0) -> bool:
        """Whether a rank has said that its run failed, or says so soon."""
        deadline = time.monotonic() + patience_s
        while True:
            try:
                if self.store.check([_RUN_FAILED]):
                    return True
            except RuntimeError:
                return False
            if time.monotonic() >= deadline:
                return False
            time.sleep(TURN_S / 5)

    def _run_ended(self) -> Exception:
        self.broken = self.broken or "a step failed between two collectives of the model"
        try:
            line = str(self.store.get(_RUN_FAILED).decode(errors="replace"))
        except RuntimeError:
            line = "another rank was lost, and with it the store of the process group"
        error: Exception = agree_on(RankError(line))
        return error

    @property
    def _failed_key(self) -> str:
        return f"failed/{self.phase}"

    def settle(self, what: str, error: BaseException | None, *, may_be_blocked: bool) -> None:
        """Tell all ranks how `what` went; raises on all ranks if it failed on any."""
        if error is None or isinstance(error, Interrupted):
            self._exchanged(what, "cut" if error is not None else "done", None, None)
            return
        if may_be_blocked:
            line = f"rank {self.rank} failed to {what}: {type(error).__name__}: {error}"
            self.store.set(self._failed_key, line)
        # Ranks that wait in a collective of the model cannot come, unless they can be interrupted.
        until_s = GRACE_S + 10.0 if may_be_blocked else None
        self._exchanged(what, "failed", error, until_s)

    def exchange(self, what: str, value: Any) -> list[Any]:
        """`value` of each rank."""
        return self._exchanged(what, "done", value, None)

    def _exchanged(self, what: str, state: str, value: Any, until_s: float | None) -> list[Any]:
        if self.broken:
            message = (
                f"ranks {self.members} cannot plan together any more, as {self.broken}: end the "
                "processes, or destroy_process_group and start again"
            )
            raise agree_on(RankError(message))
        own = value if isinstance(value, BaseException) else None
        content = told(own) if own is not None else pickle.dumps(value)
        self.doing = what
        try:
            rows = self._gathered(pickle.dumps((state, what, content)), until_s)
        except RuntimeError as error:
            self.broken = self.broken or f"they lost each other: {error}"
            if own is not None:
                raise agree_on(own) from None
            if self._run_failed():
                raise self._run_ended() from error
            raise agree_on(RankError(self._lost(what, error))) from error
        states = [row[0] for row in rows]
        if "cut" in states:
            self.broken = "one failed between two collectives of the model"
        if "failed" in states:
            first = states.index("failed")
            if self.members[first] == self.rank:
                assert own is not None
                raise agree_on(own)
            _, their_what, text = rows[first]
            if own is not None and text == content:
                raise agree_on(own)  # the error is the same on all ranks: no rank need be named
            other = agree_on(heard(text, self.members[first], their_what))
            raise (other if their_what == what else mark_elsewhere(other)) from own
        if len({row[1] for row in rows}) > 1:
            self.broken = "they do different things"
            lines = ", ".join(
                f"rank {rank}: {row[1]}" for rank, row in zip(self.members, rows, strict=True)
            )
            raise agree_on(RankError(f"ranks do different things: {lines}"))
        return [pickle.loads(row[2]) for row in rows]

    def _lost(self, what: str, error: Exception) -> str:
        """The message if the exchange itself fails: the last words of another rank, if any."""
        try:
            if self.store.check([self._failed_key]):
                return str(self.store.get(self._failed_key).decode(errors="replace"))
        except RuntimeError:
            pass
        return f"another rank was lost while ranks {self.members} {what}: {error}"

    def _gathered(self, row: bytes, until_s: float | None = None) -> list[Any]:
        num = len(self.members)
        deadline = None if until_s is None else time.monotonic() + until_s
        framed = len(row).to_bytes(_SIZE_BYTES, "little") + row

        def gathered(*tensors: Tensor) -> None:
            *outputs, given = tensors
            work = dist.all_gather(outputs, given, group=self.group, async_op=True)
            self._waited(work, deadline)

        def texts(num_bytes: int) -> list[bytes]:
            given = torch.frombuffer(
                bytearray(framed[:num_bytes].ljust(num_bytes, b"\0")), dtype=torch.uint8
            )
            found = [torch.zeros(num_bytes, dtype=torch.uint8) for _ in range(num)]
            # What gloo's thread holds a little longer would count in the step that begins next.
            lent_to(gathered, *found, given)
            return [one.numpy().tobytes() for one in found]

        rows = texts(_SHORT_BYTES)  # mostly long enough, which saves a second round
        ends = [_SIZE_BYTES + int.from_bytes(one[:_SIZE_BYTES], "little") for one in rows]
        if max(ends) > _SHORT_BYTES:
            rows = texts(max(ends))
        self.turn += 1
        return [pickle.loads(one[_SIZE_BYTES:end]) for one, end in zip(rows, ends, strict=True)]

    def from_first(self, what: str, value: Any) -> Any:
        """The first rank's `value`; its size is exchanged first, so that errors come through."""
        first = self.members[0]
        content = pickle.dumps(value) if self.rank == first else b""
        size = self.exchange(what, len(content))[0]
        tensor = torch.zeros(size, dtype=torch.uint8)
        if self.rank == first:
            tensor = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        self._waited(dist.broadcast(tensor, first, group=self.group, async_op=True), None)
        return value if self.rank == first else pickle.loads(tensor.numpy().tobytes())

    def largest(self, ints: Sequence[int], floats: Sequence[float]) -> Any:
        """Elementwise maxima; both lists are as long on all ranks, which was checked before."""
        found: list[Any] = []
        for values, dtype in ((ints, torch.int64), (floats, torch.float64)):
            tensor = torch.tensor(list(values), dtype=dtype)
            if tensor.numel():
                work = dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.group, async_op=True)
                self._waited(work, None)
            found.append(tensor.tolist())
        return tuple(found)

    def awaited(self, what: str) -> None:
        """Wait for all ranks, and name those that do not come."""
        turn, came_to_late = self.turn, bool(self.broken)
        self.store.set(f"come/{turn}/{self.rank}", what)
        self.notice = Notice(self.rank, what, lambda: self._late(turn), arrivals.ARRIVAL_S)
        try:
            self._exchanged(what, "done", None, arrivals.ARRIVAL_S)
        except RankError as error:
            late = self._late(turn)
            if not late or self.turn != turn or came_to_late:
                raise
            self.broken = f"ranks {late} did not come to {what}"
            message = f"{self.broken} within {arrivals.ARRIVAL_S:g} s; all ranks must call it"
            raise agree_on(RankError(message)) from error
        finally:
            self.notice = None

    def meet(self) -> bool:
        """Whether all come within `MEETING_S`; a meeting that was given up is held without us."""
        while True:
            self.num_meetings += 1
            key = f"meet/{self.num_meetings}"
            outcome = f"{key}/outcome"
            if self.store.check([outcome]):
                continue
            if self.store.add(f"{key}/come", 1) == len(self.members):
                self._decide(key, "together")
            deadline = time.monotonic() + MEETING_S
            while not self.store.check([outcome]):
                if time.monotonic() > deadline:
                    self._decide(key, "apart")
                time.sleep(TURN_S / 10)
            return bool(self.store.get(outcome) == b"together")

    def _decide(self, key: str, outcome: str) -> None:
        """Set the outcome of a meeting, unless another rank has set another one."""
        if self.store.add(f"{key}/decided", 1) == 1:
            self.store.set(f"{key}/outcome", outcome)

    def _late(self, turn: int) -> list[int]:
        return [rank for rank in self.members if not self._has_come(turn, rank)]

    def _has_come(self, turn: int, rank: int) -> bool:
        try:
            return bool(self.store.check([f"come/{turn}/{rank}"]))
        except RuntimeError:
            return True  # there is no way to know

    def _waited(self, work: Any, deadline: float | None) -> None:
        standing = self.standing(WaitingPlace(f"waits to {self.doing}"))

        def give_up() -> None:
            if deadline is not None and time.monotonic() > deadline:
                raise RuntimeError("other ranks did not answer in time")
            if self.notice is not None:
                self.notice.turn()
            self.hear(standing)

        try:
            wait_in_turns(work.wait, give_up)
        finally:
            standing.over()
