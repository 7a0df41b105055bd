"""Checkpointing by bisection: halve the interval, reverse the right half, then the left."""

from __future__ import annotations

from schedsim.dataflow.chain import Chain
from schedsim.plans.plan import Plan, best_of, timed
from schedsim.simulation.schedule import Schedule


@timed()
def bisection(chain: Chain, budget_bytes: int, *, depth: int | None = None) -> Plan:
    """The fastest plan of recursive halving that fits, over recursion depths.

    Parameters
    ----------
    depth
        Number of halvings; 0 is store-all. By default every depth up to log2(L) is simulated.

    Notes
    -----
    O(L log L) per depth. At full depth a unit chain of n = 2^k stages takes n (1 + k / 2) forwards
    with k live checkpoints.

    References
    ----------
    Siskind, Pearlmutter, "Divide-and-conquer checkpointing for arbitrary programs with no user
    annotation", Optimization Methods and Software 33(4-6), 2018, arXiv 1708.06799.

    Examples
    --------
    >>> from schedsim import Chain
    >>> ones = [1] * 4
    >>> chain = Chain.from_arrays("four", 1, forward_s=ones, backward_s=ones, output_bytes=ones,
    ...                           saved_bytes=ones)
    >>> bisection(chain, 100, depth=2).schedule
    Schedule(F0 F1 F2 F3 loss B3 F2 B2 F0 F1 B1 F0 B0)
    """
    full = max(0, (chain.num_stages - 1).bit_length())
    if depth is not None and depth < 0:
        raise ValueError(f"depth {depth} is negative")
    depths = range(full + 1) if depth is None else [min(depth, full)]
    schedules = (({"depth": d}, bisection_schedule(chain, d)) for d in depths)
    return best_of(chain, budget_bytes, schedules, planner="bisection")


def bisection_schedule(chain: Chain, depth: int) -> Schedule:
    """The schedule of `depth` halvings; segments that are not halved run store-all.

    Examples
    --------
    >>> from schedsim import Chain
    >>> ones = [1] * 4
    >>> chain = Chain.from_arrays("four", 1, forward_s=ones, backward_s=ones, output_bytes=ones,
    ...                           saved_bytes=ones)
    >>> bisection_schedule(chain, 1)
    Schedule(F0 F1 F2 F3 loss B3 B2 F0 F1 B1 B0)
    """
    num = chain.num_stages
    runs: list[int] = []
    stack = [(0, num, depth)]
    while stack:
        first, end, left = stack.pop()
        if left == 0 or end - first == 1:
            runs.extend(range(first, end))
            if end == num:
                runs.append(num)
            runs.extend(range(2 * num - end + 1, 2 * num - first + 1))
            continue
        middle = (first + end) // 2
        runs.extend(range(first, middle))
        stack.append((first, middle, left - 1))
        stack.append((middle, end, left - 1))
    return Schedule(chain.op_names, runs)
