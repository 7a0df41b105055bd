"""H-Revolve: checkpoints in several memory levels, each with its slots and costs of copies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.chain import Chain
from schedsim.dataflow.copies import Copy
from schedsim.errors import DeadlockError, PlannerLimitError, SchedsimError
from schedsim.plans.least_budget import LeastBudget
from schedsim.plans.levels import MemoryLevel, MemoryLevels, as_levels
from schedsim.plans.plan import Plan, make_plan, timed
from schedsim.plans.search import SearchRecord
from schedsim.plans.setting import Setting
from schedsim.simulation.schedule import Schedule

from .revolve import _few_slots, _most_that_fit

MAX_CELLS = 200_000_000
"""Entries of the two tables, 8 bytes each: 1.6 GB."""

MAX_STEPS = 10_000_000_000
"""Most times compared in one solution, some tens of seconds."""

# Where the number of slots is chosen here, it is kept so small that the rows of the device are
# quick to fill; for up to 1,000 stages that is no limit.
_QUICK = 1_000_000_000


@dataclass(frozen=True)
class HRevolve:
    """The solved recurrence, for chains of up to `num_steps` equal steps.

    With ``f`` the time of a forward and ``t`` that of a turn (the forward that saves and the
    backward that follows it), let ``O_k(n, m)`` be the least time to reverse n steps from a state
    that is in no slot, using m slots of level k and all slots of the levels above it, and
    ``P_k(n, m)`` the same with that state in one of those m slots. Then

        O_k(1, m) = P_k(1, m) = t
        P_k(n, m) = min( O_{k-1}(n, c_{k-1}) ;
                         min_j  j f + O_k(n - j, m - 1) + r_k + P_k(j, m),  0 < j < n )
        O_k(n, m) = min( O_{k-1}(n, c_{k-1}) ;  w_k + P_k(n, m) )

    without the first terms at the first level, and with ``P_k(n, 0)`` infinite. Herrmann & Pallez
    2020, section 3, count ``l = n - 1`` forwards; their ``u_b`` is our t, ``u_f`` our f. Their last
    split is ``j = n - 2``, with a formula of its own for one slot of the first level; here j may be
    ``n - 1``: go to the last step, store nothing on the way, and read the first state again. That
    includes their formula, and lets a chain of two steps be reversed from a lower level without a
    write to the first.

    Attributes
    ----------
    num_slots, write_s, read_s
        An entry for each level, the fastest first.
    """

    num_steps: int
    forward_s: float
    turn_s: float
    num_slots: tuple[int, ...]
    write_s: tuple[float, ...]
    read_s: tuple[float, ...]
    _start: NDArray[np.int64]
    _free: NDArray[np.float64]
    _kept: NDArray[np.float64]

    @classmethod
    def solve(
        cls,
        num_steps: int,
        forward_s: float,
        turn_s: float,
        num_slots: Sequence[int],
        write_s: Sequence[float],
        read_s: Sequence[float],
    ) -> HRevolve:
        """Fill the tables: O(n^2 c) time for n steps and c slots in all.

        Examples
        --------
        One free level is revolve: t(100, 10) = 222 forwards and a hundred turns. A second level
        saves some, at 2 for a write and 2 for a read.

        >>> HRevolve.solve(100, 1.0, 1.0, [10], [0.0], [0.0]).time_s
        322.0
        >>> HRevolve.solve(100, 1.0, 1.0, [10, 10], [0.0, 2.0], [0.0, 2.0]).time_s
        298.0
        """
        from ._hrevolve_table import LevelArrays, solve_levels

        slots = np.minimum(np.array(num_slots, dtype=np.int64), num_steps)
        if slots.size == 0 or slots[0] < 1:
            raise SchedsimError("the first level has no slot", hint="the chain's input takes one")
        start = np.concatenate([[0], np.cumsum(slots[:-1] + 1)])
        num_rows = int((slots + 1).sum())
        if 2 * num_rows * (num_steps + 1) > MAX_CELLS or num_rows * num_steps**2 > MAX_STEPS:
            raise PlannerLimitError(
                f"{num_steps} stages and {int(slots.sum())} slots are too many for the tables",
                hint="allow fewer slots, or use --planner revolve",
            )
        writes, reads = np.array(write_s, np.float64), np.array(read_s, np.float64)
        levels = LevelArrays(slots, writes, reads, start)
        free, kept = solve_levels(num_steps, float(forward_s), float(turn_s), levels)
        return cls(
            num_steps,
            float(forward_s),
            float(turn_s),
            tuple(slots.tolist()),
            tuple(map(float, write_s)),
            tuple(map(float, read_s)),
            start,
            free,
            kept,
        )

    @property
    def time_s(self) -> float:
        """Least time to reverse the whole chain, copies and computation one after the other."""
        return float(self._free[-1, self.num_steps])

    def actions(self) -> list[tuple[str, int, int]]:
        """The schedule: ``(what, state or step, level)`` in order.

        ``forward`` runs a step and keeps nothing, ``turn`` runs it with its bundle and then its
        backward; ``write`` stores the state before a step in a level (from 0), ``read`` fetches it.
        O(length).
        """
        done: list[tuple[str, int, int]] = []
        last = len(self.num_slots) - 1
        stack = [("free", last, self.num_slots[last], 0, self.num_steps)]
        while stack:
            what, level, slots, first, length = stack.pop()
            if what == "read":
                done.append(("read", first, level))
                continue
            if length == 1:
                done.append(("turn", first, 0))
                continue
            row = self._start[level] + slots
            below = self._free[self._start[level] - 1, length] if level else np.inf
            if what == "free":
                if level and self._free[row, length] == below:
                    stack.append(("free", level - 1, self.num_slots[level - 1], first, length))
                    continue
                done.append(("write", first, level))
            if level and self._kept[row, length] == below:
                stack.append(("free", level - 1, self.num_slots[level - 1], first, length))
                continue
            split = self._split(level, slots, length)
            done += [("forward", i, 0) for i in range(first, first + split)]
            stack.append(("kept", level, slots, first, split))
            stack.append(("read", level, 0, first, 0))
            stack.append(("free", level, slots - 1, first + split, length - split))
        return done

    def _split(self, level: int, slots: int, length: int) -> int:
        """The distance to the next stored state that attains the recurrence."""
        row = self._start[level] + slots
        ahead = np.arange(1, length)
        times = ahead * self.forward_s + self._free[row - 1, length - ahead]
        times = times + self.read_s[level] + self._kept[row, ahead]
        return int(np.argmin(times)) + 1


@timed()
def hrevolve(
    chain: Chain,
    budget_bytes: int,
    *,
    levels: Sequence[MemoryLevel | tuple[int, float, float]] = (),
    num_slots: int | None = None,
) -> Plan:
    """The plan with checkpoints on the device as memory allows, and in slower levels below it.

    Parameters
    ----------
    levels
        Levels below the device, the fastest first: `MemoryLevel`, or (slots, seconds to write,
        seconds to read). Without any level, the plan is that of `revolve`. One level with room for
        all states is the setting of disk-revolve.
    num_slots
        States held on the device at once, the chain's input included. By default the most that fit
        the budget; on a chain of L > 1,000 stages, at most 10^9 / L^2.

    Notes
    -----
    The recurrence counts copies and computation one after the other (synchronous levels), for
    stages that are all alike, with the means of the chain's times. Its time is least among
    hierarchical schedules: those in which the states of a level lie within the reach of one state
    of the next slower level. The plan is replayed with the chain's own times and bytes, and with
    copies on streams of their own beside the computation: it takes no longer than the sum,
    ``synchronous_s`` in the plan's `search`. O(L^2 c) per number of slots tried, for c slots in
    all; about log2(L) are tried.

    References
    ----------
    Herrmann, Pallez, "H-Revolve: a framework for adjoint computation on synchronous hierarchical
    platforms", ACM TOMS 46(2), 2020. Aupy, Herrmann, Hovland, Robert, "Optimal multistage algorithm
    for adjoint computation", SIAM J. Sci. Comput. 38(3), 2016 (disk-revolve).

    Examples
    --------
    Two states on the device, alone and with a level of four slots and copies of half a step:

    >>> from schedsim import Chain
    >>> ones = [1] * 10
    >>> chain = Chain.from_arrays("ten", 1, forward_s=ones, backward_s=ones, output_bytes=ones,
    ...                           saved_bytes=ones)
    >>> hrevolve(chain, 100, num_slots=2).makespan_s
    40.0
    >>> hrevolve(chain, 100, num_slots=2, levels=[(4, 0.5, 0.5)]).search.figures["synchronous_s"]
    36.0
    """
    below = as_levels(levels)
    if num_slots is not None and num_slots < 1:
        raise SchedsimError(f"num_slots {num_slots} is not at least 1", hint="the input takes one")
    setting = Setting(copies=below)
    num = chain.num_stages
    most = max(1, min(num, _QUICK // num**2))

    @cache
    def solved(slots: int) -> tuple[float, Schedule]:
        return level_schedule(chain, slots, below)

    @cache
    def fits(slots: int) -> bool:
        try:
            replay = setting.simulate(chain, solved(slots)[1], budget_bytes)
        except DeadlockError:
            return False
        return replay.peak_bytes <= budget_bytes

    chosen = num_slots
    if chosen is None:
        chosen = _most_that_fit(fits, most)
    elif not fits(chosen):
        chosen = None
    if chosen is not None:
        return make_plan(
            chain,
            budget_bytes,
            solved(chosen)[1],
            planner="hrevolve",
            options={"num_slots": chosen},
            search=SearchRecord(figures={"synchronous_s": solved(chosen)[0]}),
            setting=setting,
        )
    few = [num_slots] if num_slots else _few_slots(most, None)[:3]
    return make_plan(
        chain,
        budget_bytes,
        None,
        planner="hrevolve",
        least=LeastBudget(min(_least_budget(chain, setting, solved(s)[1]) for s in few)),
        setting=setting,
    )


def level_schedule(chain: Chain, num_slots: int, below: MemoryLevels) -> tuple[float, Schedule]:
    """(time of the recurrence, schedule of the chain), from the means of the chain's times."""
    num = chain.num_stages
    forward_s = math.fsum(stage.forward_s for stage in chain.stages) / num
    backward_s = math.fsum(stage.backward_s for stage in chain.stages) / num
    solved = HRevolve.solve(
        num,
        forward_s,
        forward_s + backward_s,
        [num_slots, *(level.num_slots for level in below.levels)],
        [0.0, *(level.write_s for level in below.levels)],
        [0.0, *(level.read_s for level in below.levels)],
    )
    names: list[str] = []
    for what, i, level in solved.actions():
        if what == "turn":
            names += [f"F{i}", *(["loss"] if i == num - 1 else []), f"B{i}"]
        elif what == "forward":
            names.append(f"F{i}")
        elif level > 0:  # states on the device live as long as something reads them
            names.append(Copy(f"a{i}", back=what != "write", level=level + 1).name)
    return solved.time_s + chain.loss_s, Schedule.from_names(names)


def _least_budget(chain: Chain, setting: Setting, schedule: Schedule) -> int:
    """A budget that is enough for `schedule`, close to the least, by halving."""
    high = setting.simulate(chain, schedule, None).peak_bytes
    if setting.workload(chain, schedule).graph.one_stream:
        return high  # no run can wait
    low = chain.static_bytes
    while high - low > max(1, high // 1000):
        middle = (low + high) // 2
        try:
            peak = setting.simulate(chain, schedule, middle).peak_bytes
        except DeadlockError:
            peak = high
        if peak <= middle:
            high = peak
        else:
            low = middle
    return high
