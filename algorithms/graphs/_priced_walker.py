"""Annealings in which bytes above the limit have a price at every run, from the first move on.

They begin from the graph's own order, far above the limit, and have one temperature for time and
bytes. A walker that looks at the peak alone decides early where memory is short, and keeps to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph

from ._profile_record import LARGEST
from ._walker import SMALL_MOVES, GraphWalker

if TYPE_CHECKING:
    from ._graph_search import GraphSearch

# Prices in units of the store-all time a byte of the store-all peak; the least and the largest that
# a price comes to where it follows the bytes above the limit.
_LEAST, _LARGEST = 0.02, 1000.0

# The share of the annealing from which on a rising price follows the bytes above the limit.
_FOLLOWS = 0.85

# How cold bytes are in the end, where nothing has fitted until then, of the warmth at first.
_COLD = 0.02

# That share of the moves are exchanges.
_EXCHANGES = 0.1


@dataclass(frozen=True, slots=True)
class PriceCourse:
    """How the price of a byte and the temperature go from the begin of an annealing to its end.

    Attributes
    ----------
    first, last
        The price at first, and when it begins to follow the bytes above the limit.
    hot, cold
        The temperature at first and in the end, in mean op times.
    warm
        Where it is given, the price follows from the first move on, up to `last`, and until
        something fits, the temperature is that of so many tensors of half the mean size: the
        walker finds to the limit first, whatever the time. It has all of `hot` from there on.
    """

    first: float
    last: float
    hot: float
    cold: float
    warm: float | None = None


RISING = PriceCourse(0.1, 2.0, 2.0, 0.05)
"""From what is fast, and above the limit, to what fits."""

FITTING = PriceCourse(20.0, 20.0, 4.0, 0.05, warm=8.0)
"""To the limit first, and from there to what is fast."""

FROM_BOUND = replace(FITTING, warm=4.0)
"""The same, less warm, since the start has to keep its form."""

SOON = replace(FITTING, first=2000.0, last=2000.0, warm=3.0)
"""To the limit, on hundreds of ops and more; what takes long there is as good as any other."""

GENTLE = replace(FITTING, warm=0.3)
"""The same on fewer ops, where the least warmth is enough."""


@dataclass
class PricedWalker(GraphWalker):
    """A walker that goes one `course` in one round.

    Attributes
    ----------
    unit_s
        Seconds a byte.
    mean_s
        The mean op time.
    fits_since
        The share of the round at which something fitted first; ``None`` before.
    """

    course: PriceCourse = RISING
    unit_s: float = 1.0
    mean_s: float = 1.0
    fits_since: float | None = None

    def go(self, graph: Graph, course: PriceCourse) -> None:
        """Go that course."""
        self.end_greedy()
        self.note_least()
        self.course = course
        self.mean_s = graph.store_all_s / graph.num_ops or 1e-12
        self.unit_s = graph.store_all_s / max(1, int(self.profile.tree[1, LARGEST])) or 1.0
        self.rules = replace(
            self.rules, thorough=0.0, exchanges=_EXCHANGES, summed=True, lasting=True
        )
        least, largest = _LEAST * self.unit_s, _LARGEST * self.unit_s
        if course.warm is not None:
            largest = course.last * self.unit_s
        self.rules.price[:] = course.first * self.unit_s, least, largest, 0.0

    def begin(self, number: int) -> None:
        """Do nothing: the course is that of the first round."""

    def anneal(self, share: float, work: float, most_moves: int) -> tuple[float, int]:
        course = self.course
        if self.best_s < float("inf") and self.fits_since is None:
            self.fits_since = share
        if course.warm is not None:
            self._find_to_limit(share, course.warm)
        else:
            self.heat_s = self._cooled(share)
            if share < _FOLLOWS:
                price = course.first * (course.last / course.first) ** (share / _FOLLOWS)
                self.rules.price[:3] = price * self.unit_s
            else:
                self.rules.price[1:3] = _LEAST * self.unit_s, _LARGEST * self.unit_s
        return self.move(self.heat_s, work, most_moves)

    def _cooled(self, share: float) -> float:
        course = self.course
        return float(self.mean_s * course.hot * (course.cold / course.hot) ** share)

    def _find_to_limit(self, share: float, warm: float) -> None:
        if self.fits_since is None:
            self.heat_s = 0.0
            self.rules.price[3] = warm * self.warm_bytes * _COLD**share
        else:
            self.heat_s = self._cooled((share - self.fits_since) / max(1e-9, 1 - self.fits_since))


def priced_walker(search: GraphSearch, line: NDArray[Any], course: PriceCourse) -> PricedWalker:
    """The next walker of `search`, which goes `course` from `line` by small moves."""
    walker = PricedWalker.of(
        search.graph,
        search.packed,
        line,
        number=len(search.walkers),
        seed=search.seed,
        rules=(search.limit, search.free),
        kind=SMALL_MOVES,
    )
    walker.go(search.graph, course)
    return walker
