"""One pool of threads for all annealings: walkers in rounds, the worse half dropped after each.

The result depends on the amount of work alone, however many threads there are and however fast they
are: every walker has an amount of work of its own, the walkers meet at the ends of rounds, and the
walker of the lower number wins a tie.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from schedsim.plans.effort import Effort
from schedsim.plans.progress import current

# Between looks at whether to stop, units of work; a walk has some dozens of them where it is short.
_CHUNK, _LEAST_CHUNK, _CHUNKS = 0.02, 0.001, 25

_NO_LIMIT = 2**62


class Walker(Protocol):
    """One annealing, with the best schedule that it has seen."""

    @property
    def best_s(self) -> float:
        """Step time of the best schedule that fits; infinite where there is none."""

    @property
    def rank(self) -> tuple[int, float]:
        """The rank by which walkers are sorted: the walker of the lowest rank is the best."""

    def begin(self, number: int) -> None:
        """Begin round `number`, from 0 on."""

    def anneal(self, share: float, work: float, most_moves: int) -> tuple[float, int]:
        """Anneal for about `work` units, from the temperature at that `share` of the round on.

        Returns the work done, and the number of moves.
        """


AnyWalker = TypeVar("AnyWalker", bound=Walker)
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class RoundPart:
    """A part of a round, between two meetings of the walkers; `low` and `high` are shares of it."""

    number: int
    low: float = 0.0
    high: float = 1.0


class Pool(Generic[AnyWalker]):
    """Threads for walkers that share an effort.

    Parameters
    ----------
    effort
        The effort of all walkers together. Where the clock ends it, the walkers take turns on the
        threads.
    enough_s
        A step time at which the search stops; it may be changed between segments.

    Attributes
    ----------
    moves : int
        Moves of all walkers. Where one walker ended the search by `enough_s`, what the others did
        meanwhile is not counted.
    winner
        The walker that met `enough_s`; of several, the one that took the least work.
    """

    def __init__(self, effort: Effort, num_threads: int, enough_s: float) -> None:
        self.effort, self.num_threads, self.enough_s = effort, num_threads, enough_s
        self.moves = 0
        self.winner: AnyWalker | None = None
        self.halted = threading.Event()
        self.progress = current()
        self._threads = ThreadPoolExecutor(num_threads)
        self._lock = threading.Lock()
        self._best_s = math.inf
        self._hit = (math.inf, _NO_LIMIT)  # share of the segment, number of the walker

    def __enter__(self) -> Pool[AnyWalker]:
        return self

    def __exit__(self, *_: object) -> None:
        self.halted.set()
        self._threads.shutdown(cancel_futures=True)  # walkers end with what they are at

    def all_of(self, makers: Sequence[Callable[[], Made]]) -> list[Made]:
        """The results of `makers`, which run on the threads, in the order of `makers`."""
        return _results([self._threads.submit(maker) for maker in makers])

    def submit(self, job: Callable[[], Made]) -> Future[Made]:
        """Begin `job` on the threads, beside the walkers."""
        return self._threads.submit(job)

    def wait(self, job: Future[Made]) -> Made:
        """The result of `job`, once it is done."""
        return _results([job])[0]

    def per_job(self, amount: float, num_jobs: int) -> float:
        """The part of `amount` that each of `num_jobs` simultaneous jobs may take."""
        if self.effort.counted:
            return amount / num_jobs
        return amount * min(1.0, self.num_threads / num_jobs)

    def walk(self, walkers: Sequence[AnyWalker], segment: RoundPart, share: float) -> None:
        """Have `walkers` anneal through `segment`, for `share` of what is left of the effort."""
        count = len(walkers)
        amount = self.per_job(share * self.effort.left, count)
        moves: list[int | None] = [None] * count
        if self.effort.moves is not None:
            left = round(share * max(0, self.effort.moves - self.moves))
            moves = [(left + k) // count for k in range(count)]
        self._hit = (math.inf, _NO_LIMIT)
        done = _results(
            [
                self._threads.submit(self._walk, k, walker, segment, amount, moves[k])
                for k, walker in enumerate(walkers)
            ]
        )
        reached, number = self._hit
        if number < count:
            self.winner = walkers[number]
            self.moves += done[number][1]
            if self.effort.moves is None:
                self.effort.spend(reached * amount * count)
            return
        if self.halted.is_set() and not self.effort.cancelled:
            return  # how far the walkers came is chance, so that it does not count
        self.moves += sum(moves for _, moves in done)
        if self.effort.moves is None:
            self.effort.spend(sum(work for work, _ in done))

    def _walk(
        self, number: int, walker: AnyWalker, segment: RoundPart, amount: float, moves: int | None
    ) -> tuple[float, int]:
        own = self.effort.take(amount if moves is None else math.inf)
        if segment.low == 0.0:
            walker.begin(segment.number)
        chunk = max(_LEAST_CHUNK, min(_CHUNK, amount / _CHUNKS))
        num_moves = 0
        share = 0.0 if moves is None or moves else 1.0
        while share < 1.0 and not self._is_over(walker, share):
            work, made = walker.anneal(
                segment.low + (segment.high - segment.low) * share,
                min(chunk, own.left) if moves is None and own.counted else chunk,
                _NO_LIMIT if moves is None else moves - num_moves,
            )
            num_moves += made
            own.spend(max(work, 1e-9))
            share = own.share if moves is None else num_moves / moves
            if walker.best_s <= self.enough_s and walker.best_s < math.inf:
                with self._lock:
                    self._hit = min(self._hit, (share, number))
                    self._best_s = min(self._best_s, walker.best_s)
                break
        return own.spent, num_moves

    def _is_over(self, walker: AnyWalker, share: float) -> bool:
        with self._lock:
            self._best_s = min(self._best_s, walker.best_s)
            best_s, hit_at = self._best_s, self._hit[0]
        self.progress.report(best_s)
        # Another walker met the end with less work: this one has nothing to add. With more, it may
        # have.
        if share >= hit_at or self.halted.is_set():
            return True
        return self.effort.is_over(best_s)


def _results(futures: list[Future[Made]]) -> list[Made]:
    """The results of `futures`, waited for in slices, so that an interrupt is seen."""
    results = []
    for future in futures:
        while True:
            try:
                results.append(future.result(timeout=0.2))
                break
            except TimeoutError:
                if future.done():  # it was raised by what ran
                    results.append(future.result())
                    break
    return results
