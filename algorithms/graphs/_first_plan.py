"""A first plan, soon: a short annealing that gives bytes a price and is hardly warm.

Where memory is short, the walkers of a search come within the limit after seconds, because they
begin warm, for the sake of what they end with. A search that is interrupted by then, or has little
time, would have no plan. No walker goes on from this schedule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from .._pool import Pool, RoundPart
from ._first_walkers import SLOW_OPS
from ._priced_walker import GENTLE, SOON, priced_walker
from ._walker import GraphWalker

if TYPE_CHECKING:
    from ._graph_search import GraphSearch

# The most work for each op, and the most of what is left of it, or of the seconds; and from so many
# ops on, walkers go warmer, and what they do counts: they go where so much work is left, or so many
# seconds.
_PER_OP, _SHARE, _CLOCK_SHARE, _MANY_OPS, _AMPLE = 1e-3, 0.05, 0.1, 500, 8.0


def walk_to_first_plan(
    search: GraphSearch, pool: Pool[GraphWalker], line: NDArray[Any]
) -> GraphWalker | None:
    """A walker from `line` that has found any schedule that fits, or has done its work.

    None goes where something fits, where moves are counted, on the largest graphs, on which a scout
    goes, and on many ops where little is left, which plans within little memory need themselves.
    """
    num_ops, effort = search.graph.num_ops, search.effort
    if num_ops >= SLOW_OPS or effort.moves is not None or not search.none_fits():
        return None
    if num_ops >= _MANY_OPS and effort.left < _AMPLE:
        return None
    walker = priced_walker(search, line, GENTLE if num_ops < _MANY_OPS else SOON)
    search.ahead.append(walker)  # before it begins: what it has counts after an interrupt, too
    most = _SHARE if effort.counted else _CLOCK_SHARE
    share = min(most, _PER_OP * num_ops / max(1e-9, effort.left))
    spent = effort.spent
    search.walk_until_any_fits(pool, walker, RoundPart(0), share)
    if num_ops < _MANY_OPS:
        # So little that it does not count: the others come to what they come to without it.
        effort.spent = spent
    search.ahead_spent = effort.spent - spent
    return walker
