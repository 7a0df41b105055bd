"""Graphs that are chains: dynamic programs of chains find schedules that a search hardly finds.

Within little memory the best schedule of a chain repeats most of it several times. Single edits do
not lead there from store-all, whereas the recurrence of persistent schedules finds it at once; the
search then goes on from there, because schedules beyond the persistent ones may be faster.
"""

from __future__ import annotations

import numpy as np

from schedsim.dataflow.chain import Chain
from schedsim.dataflow.graph import Graph
from schedsim.plans.effort import Effort
from schedsim.plans.plan import Plan
from schedsim.simulation.schedule import Schedule

from ..chains.frontier import frontier
from ..chains.persistent import MAX_STAGES, WorkLimitReached
from ..chains.rotor import rotor

# The shares of the effort that are spent on the curve and, where the curve has too many points, on
# the dynamic program over memory slots: on long chains a search finds less in that time.
_SHARE, _SLOTS_SHARE = 0.1, 0.8
# Points that are merged for a unit of effort, and the least work: the curves of most chains take no
# more, in a twentieth of a second.
_POINTS_PER_UNIT, _LEAST_WORK = 2e7, 0.5


def chain_form(graph: Graph) -> Chain | None:
    """The chain that `graph` is, or ``None``; its structure decides, not the names of its ops.

    First come the forward ops, of which each reads what the op before it wrote; then perhaps a
    loss; then a backward op for each forward op, in reverse. A backward op reads the gradient of
    the backward op before it, and of the forward pass no more than its own stage and that stage's
    input. The sizes are those of the chain where all of that is read, and no larger otherwise.
    O(ops + reads).

    Examples
    --------
    >>> chain = Chain.from_arrays("four", 1, forward_s=[1] * 4, backward_s=[1] * 4,
    ...                           output_bytes=[1] * 4, saved_bytes=[1] * 4)
    >>> chain_form(chain.graph).num_stages
    4
    """
    num_ops, arrays = graph.num_ops, graph.arrays
    num = num_ops // 2
    if num < 2 or arrays.op_once.any() or graph.results:
        return None
    producer, sizes = arrays.tensor_producer, arrays.tensor_bytes
    output = [0] * num
    for i in range(num_ops):
        reads = arrays.read_tensor[arrays.read_start[i] : arrays.read_start[i + 1]]
        made = {int(producer[t]) for t in reads if producer[t] >= 0}
        if i < num:
            if made != ({i - 1} if i else set()):
                return None
            if i:
                output[i - 1] = int(sizes[reads[producer[reads] == i - 1]].sum())
            continue
        if i == num and num_ops % 2:
            allowed = {num - 1}
            output[num - 1] = int(sizes[reads[producer[reads] == num - 1]].sum())
        else:
            stage = num_ops - 1 - i
            allowed = {stage, stage - 1, *([i - 1] if i > num else [])}
        if not made <= allowed:
            return None
    written = np.zeros(num_ops, np.int64)
    np.add.at(written, producer[producer >= 0], sizes[producer >= 0])
    output[num - 1] = output[num - 1] or int(written[num - 1])
    backward = num_ops - 1 - np.arange(num)
    return Chain.from_arrays(
        graph.name,
        sum(graph.inputs.values()),
        forward_s=arrays.op_time_s[:num],
        backward_s=arrays.op_time_s[backward],
        output_bytes=output,
        saved_bytes=written[:num],
        forward_workspace_bytes=arrays.op_workspace_bytes[:num],
        backward_workspace_bytes=arrays.op_workspace_bytes[backward],
        static_bytes=graph.static_bytes,
    )


# The arrays of a graph on which the simulation of a schedule depends.
_SEEN = (
    "op_time_s",
    "op_workspace_bytes",
    "op_saving_workspace_bytes",
    "op_once",
    "read_start",
    "read_tensor",
    "write_start",
    "write_tensor",
    "tensor_bytes",
    "tensor_producer",
    "tensor_optional",
    "tensor_result",
    "tensor_takes_over",
)


def is_lowered(graph: Graph, chain: Chain) -> bool:
    """Whether `graph` is the graph of `chain` but for names: what holds for one holds for both.

    Examples
    --------
    >>> chain = Chain.from_arrays("four", 1, forward_s=[1] * 4, backward_s=[1] * 4,
    ...                           output_bytes=[1] * 4, saved_bytes=[1] * 4)
    >>> is_lowered(chain.graph, chain_form(chain.graph))
    True
    """
    arrays, own = graph.arrays, chain.graph.arrays
    return (
        graph.static_bytes == chain.static_bytes
        and not graph.evicted
        and all(np.array_equal(getattr(arrays, name), getattr(own, name)) for name in _SEEN)
    )


def chain_start(graph: Graph, chain: Chain, budget_bytes: int, effort: Effort) -> Schedule | None:
    """A persistent schedule of `graph`, which is `chain`, in the budget; ``None`` if none fits."""
    if chain.num_stages > MAX_STAGES:
        return None
    plan = persistent_plan(chain, budget_bytes, effort)
    if plan.schedule is None:
        return None
    num, num_ops = chain.num_stages, graph.num_ops
    # The ops of the chain's own graph are F0 ..., loss, ... B0; this one may have no loss.
    runs = plan.schedule.bind(chain.graph).astype(np.int64)
    if num_ops == 2 * num:
        runs = runs[runs != num]
        runs = np.where(runs > num, runs - 1, runs)
    return Schedule(graph.op_names, runs)


def persistent_plan(chain: Chain, budget_bytes: int, effort: Effort) -> Plan:
    """The best persistent schedule that can be found with a part of `effort`."""
    with effort.part(_SHARE) as part:
        work = int(_POINTS_PER_UNIT * max(part.left, _LEAST_WORK))
        try:
            plan = frontier(chain, budget_bytes, max_points=3_000_000, max_work=work)
            part.spend(0.1 * part.left)
            return plan
        except WorkLimitReached:
            pass
    # Where work is counted, the first solution takes as many slots in any share of it.
    share = _SHARE if effort.counted else _SLOTS_SHARE
    with effort.part(share) as part:
        return rotor(chain, budget_bytes, gap=0.01, effort=part)
