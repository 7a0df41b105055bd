"""A bound on the time of every schedule of a chain, by a game that persistent schedules win.

Look at a schedule from its end backwards, at the first run of each backward. The first run of
backward q demands the saved bundle of stage q and the output q - 1: there, or somewhere in front,
they are made. A forward run in front turns a demand for output j, or for bundle j, into one for
output j - 1; demands for the same output become one. During the first run of a backward, all
demands of the backwards behind it are in memory beside its own bytes.

The game asks for less than the schedule does:

- an output is charged no more than any output before it, so that no forward alone frees memory;
- beside a bundle that is held, the input of its stage is free, so that dropping that frees nothing;
- while forwards run, nothing is charged.

Then a forward run that makes no two demands one can be put off until one that does: runs form
sweeps from one demand down to the next lower one, and what rests is an output that some backward
has demanded, or a bundle. So the best of the game is persistent, and a recurrence over intervals of
stages finds it. Every schedule takes at least that time, persistent or not.

Where outputs grow, the first rule gives much away. Games over disjoint stretches of the chain count
different forward runs: the sum of their optima is a bound as well, and a stretch that begins behind
a small output does not know of it.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.chain import Chain
from schedsim.kernels.cached import njit

from ._demand_search import ChainItems

MOST_STAGES = 250
"""The most stages of a chain that the game is played on: its tables are cubic in time."""

# Memory is counted in so many units, up to a number of stages, and in half of it above. And the
# most stretches that begin behind a small output.
_UNITS, _FINE_STAGES, _MOST_STARTS = 128, 120, 6
# Steps of the tables that a core does in about a second.
_STEPS_PER_UNIT = 3e8

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def sweep_work(num_stages: int) -> float:
    """About the work of the bound for so many stages; 0 where there is none."""
    if num_stages > MOST_STAGES:
        return 0.0
    return float(_num_units(num_stages)) * num_stages**3 / _STEPS_PER_UNIT


def sweep_bound_s(chain: Chain, budget_bytes: int) -> float:
    """A bound on the makespan of every schedule of `chain` within `budget_bytes`.

    Infinite where no schedule fits; the store-all time where there are more than `MOST_STAGES`
    stages. On chains of equal stages it is the optimum itself wherever no bundle but one fits
    beside a backward.

    Notes
    -----
    O(L^3 units) for each of at most seven stretches, O(L^2 units) memory. Source: schedsim; for
    equal stages without bundles that persistent schedules are best is due to Grimm, Pottmeyer and
    Rostaing-Schmidt 1996.

    Examples
    --------
    >>> chain = Chain.from_arrays("six", 1, forward_s=[1] * 6, backward_s=[1] * 6,
    ...                           output_bytes=[1] * 6, saved_bytes=[8] * 6)
    >>> sweep_bound_s(chain, 12), sweep_bound_s(chain, 11)  # store-all takes 12
    (27.0, inf)
    """
    num = chain.num_stages
    if num > MOST_STAGES:
        return chain.store_all_s
    items = ChainItems.of(chain, budget_bytes)
    room = items.room_bytes - items.backward_bytes
    if room.min() < 0:
        return math.inf
    unit = max(1, int(room.max()) // _num_units(num))
    forward_s = np.append(items.forward_s, 0.0)  # the loss is a stage that takes no time to reach
    output = np.append(0, items.output_bytes)
    bundle = np.append(items.residual_bytes, 0)
    starts = _starts(items.output_bytes)
    best_s = dict.fromkeys([*starts, num + 1], 0.0)
    for start in starts:
        charged = np.minimum.accumulate(output[start + 1 :]) if start < num else output[:0]
        outputs = np.append(0, charged)
        taken_s = _sweeps(
            forward_s[start:],
            outputs // unit,
            (bundle[start:] + np.append(charged, 0)) // unit,
            room[start:] // unit,
        )
        for end in best_s:
            if end > start:
                best_s[end] = max(best_s[end], best_s[start] + float(taken_s[end - start]))
    return float(items.above_s[0]) + best_s[num + 1]


def _num_units(num_stages: int) -> int:
    return _UNITS if num_stages <= _FINE_STAGES else _UNITS // 2


def _starts(output_bytes: Ints) -> list[int]:
    """Stages behind which a stretch begins: 0, and those whose output is less than all behind."""
    behind = np.minimum.accumulate(output_bytes[::-1])[::-1]
    # The last output is read by the loss alone.
    found = [j for j, (one, next_one) in enumerate(pairwise(behind.tolist()), 1) if one < next_one]
    found = [j for j in found if j < output_bytes.size - 1]
    if len(found) > _MOST_STARTS:
        places = np.linspace(0, len(found) - 1, _MOST_STARTS).astype(int)
        found = [found[k] for k in places]
    return [0, *found]


@njit(cache=True)
def _sweeps(forward_s: Floats, output: Ints, bundle: Ints, room: Ints) -> Floats:
    """The least time of forwards that backwards 0 .. k - 1 ask for, for each number k of stages.

    ``best[b, i, j, h]``: of the stages i to j, with output i - 1 held and `h` units of memory taken
    by others. In b = 0, a bundle among these holds output i - 1; in b = 1 nothing does.

    Parameters
    ----------
    forward_s : (n,)
    output : (n,)
        Charged for the output before each stage: of the first, 0.
    bundle : (n,)
        Charged for the saved bundle of each stage, its output included.
    room : (n,)
        Memory beside the backward of each stage.
    """
    num, width = forward_s.size, (room + output).max() + 1
    best = np.full((2, num + 1, num + 1, width), np.inf)
    for length in range(1, num + 1):
        for i in range(num - length + 1):
            j = i + length - 1
            for b in range(2):
                beside = output[i] if b else 0
                most = min(width - 1, room[i] + (0 if b else output[i]))
                mine = best[b, i, j]
                if length == 1:
                    mine[: most + 1] = forward_s[i]
                    continue
                # The bundle of stage i is held until its backward.
                for h in range(min(most, width - 1 - bundle[i]) + 1):
                    mine[h] = forward_s[i] + best[0, i + 1, j, h + bundle[i]]
                # Output k is held until the backward behind it.
                swept_s = 0.0
                for k in range(i, j):
                    swept_s += forward_s[k]
                    above, below = best[1, k + 1, j], best[b, i, k]
                    for h in range(width - beside):
                        taken_s = swept_s + above[h + beside] + below[h]
                        if taken_s < mine[h]:
                            mine[h] = taken_s
    found = np.zeros(num + 1)
    for k in range(num):
        found[k + 1] = best[1, 0, k, 0]
    return found
