"""A schedule with more runs, each of which may be left out: an offer to plan some ops anew."""

from __future__ import annotations

from schedsim.kernels.compiled import kernel
from schedsim.kernels.record import Flags, Ints


@kernel
def offered_runs(
    line: Ints, ops: Ints, last_use: Ints, is_open: Flags, found: Ints, ours: Flags
) -> int:
    """Write `line` with a run of each of `ops` in each gap that is open; the number of runs.

    Gap k lies before the first run of op k. In it an op is offered that has run before, and of
    which something is made later, unless it runs there anyway.

    Parameters
    ----------
    line : (runs,)
        A schedule whose first runs stand in the order of the ops.
    ops : (chosen,)
        In ascending order.
    last_use : (num_ops,)
        The last op that is made from each op, directly or not.
    is_open : (num_ops,)
    found, ours : (most,)
        What is written: the runs, and which of them are those of `line`.
    """
    count, at, gap = 0, 0, 0
    num_ops = is_open.size
    while gap < num_ops:
        k, run = 0, -1
        while run != gap:
            run = line[at]
            while k < ops.size and ops[k] < run:
                if is_open[gap] and last_use[ops[k]] >= gap:
                    found[count] = ops[k]
                    ours[count] = False
                    count += 1
                k += 1
            if k < ops.size and ops[k] == run:
                k += 1
            found[count] = run
            ours[count] = True
            count, at = count + 1, at + 1
        gap += 1
    while at < line.size:
        found[count] = line[at]
        ours[count] = True
        count, at = count + 1, at + 1
    return count
