"""How long an order of micro-batches takes, without simulating its memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import SchedsimError
from .order_arrays import OrderArrays


def order_makespan(
    order: OrderArrays,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    message_s: float = 0.0,
) -> float:
    """Seconds of a step: the makespan that `run_pipeline` finds, for stages that keep everything.

    Parameters
    ----------
    forward_s, backward_s
        Of one micro-batch on each stage. Where the order has gradients of weights, these take half
        of a backward.
    message_s
        Seconds of a message; a link sends one at a time, in the order in which they are made.

    Raises
    ------
    SchedsimError
        The order cannot run.

    Notes
    -----
    Each start is the latest of the ends that it waits for, so that the makespan does not fall where
    a stage takes longer. O(actions): a millisecond for 100,000.

    Examples
    --------
    >>> from schedsim.pipelines.order_arrays import order_arrays
    >>> order = order_arrays("1f1b", 4, 8, 1)
    >>> order_makespan(order, [1.0] * 4, [2.0] * 4)  # (8 + 4 - 1) * 3
    33.0
    """
    from ..kernels.compiled import run
    from ._order_kernel import WEIGHTS, play_order

    num_devices, num_stages = order.first.size - 1, len(forward_s)
    backward = np.array(backward_s, dtype=np.float64)
    weights = backward / 2 if (order.kind == WEIGHTS).any() else 0.0 * backward
    seconds = np.array([forward_s, backward - weights, weights], dtype=np.float64)
    found = run(
        play_order,
        order.kind.size,
        order,
        seconds,
        float(message_s),
        np.full((2 * num_stages, int(order.micro.max()) + 1), -1.0),
        np.zeros(3 * num_devices),
        order.first[:-1].copy(),
    )
    if found < 0.0:
        raise SchedsimError("the order cannot run: devices wait for one another")
    return float(found)


def least_makespan(
    schedule: str,
    num_devices: int,
    num_micro_batches: int,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    message_s: float = 0.0,
) -> float:
    """Seconds that no order called `schedule` beats, without playing it; O(stages).

    Device k cannot begin before the first micro-batch has passed the k stages before its first one.
    Then it runs its forwards and backwards; after its last backward, which is one of its first
    stage, those of the stages before follow, each after a message. With ``zero-bubble``, a backward
    is two halves; device k owes at most k of the second ones, so that at most k + 1 come after its
    last first half, and one of device 0 at the very end.

    Examples
    --------
    >>> least_makespan("1f1b", 4, 8, [1.0] * 4, [2.0] * 4)
    33.0
    """
    split = schedule == "zero-bubble"
    best = before = 0.0
    for k in range(num_devices):
        forward, backward = sum(forward_s[k::num_devices]), sum(backward_s[k::num_devices])
        work = num_micro_batches * (forward + backward)
        if split:
            fill = sum(forward_s[:k]) + k * message_s
            drain = sum(backward_s[:k]) / 2 + k * message_s + (backward_s[0] / 2 if k else 0.0)
            owed = min(k + 1, num_micro_batches) * backward / 2
            best = max(best, fill + work, fill + work - owed + drain)
        else:
            best = max(best, work + before + 2 * k * message_s)
            before += forward_s[k] + backward_s[k]
    return best
