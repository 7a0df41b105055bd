"""Random legal schedules for tests, which need no planner and save no memory on purpose."""

from __future__ import annotations

import numpy as np

from schedsim.dataflow.chain import Chain
from schedsim.dataflow.graph import Graph
from schedsim.simulation.schedule import Schedule


def random_schedule(
    workload: Chain | Graph, rng: np.random.Generator, *, repeats: float = 0.7
) -> Schedule:
    """The ops of `workload` in order, with random repeats of forwards that have run before.

    A block's forward is not repeated behind its backward, where nothing needs it.

    Parameters
    ----------
    repeats
        Mean number of repeats for each op of the workload.

    Examples
    --------
    >>> import numpy as np
    >>> from schedsim import Chain, simulate
    >>> ones = [1, 1, 1]
    >>> chain = Chain.from_arrays(
    ...     "c", 1, forward_s=ones, backward_s=ones, output_bytes=ones, saved_bytes=ones)
    >>> schedule = random_schedule(chain, np.random.default_rng(0))
    >>> simulate(chain, schedule).num_recomputed == len(schedule) - 7
    True
    """
    ops = workload.graph.ops
    may_repeat = [i for i, op in enumerate(ops) if op.phase == "forward" and not op.once]
    place = {op.name: i for i, op in enumerate(ops)}
    ends = {k: place.get(f"B{ops[k].name[1:]}", len(ops)) for k in may_repeat}
    runs: list[int] = []
    for i in range(len(ops)):
        before = [k for k in may_repeat if k < i <= ends[k]]
        for _ in range(int(rng.poisson(repeats)) if before else 0):
            runs.append(before[int(rng.integers(len(before)))])
        runs.append(i)
    return Schedule(workload.op_names, runs)
