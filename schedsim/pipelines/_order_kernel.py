"""The kernel behind `schedsim.pipelines.order_seconds`: when each action of each device ends.

Compiled by numba on first use; imported only by `order_makespan`.
"""

from __future__ import annotations

from ..kernels.compiled import kernel
from ..kernels.record import Ints, Reals, RealTable
from .order_arrays import OrderArrays

FORWARD, BACKWARD, WEIGHTS = range(3)


@kernel
def play_order(
    order: OrderArrays,
    seconds: RealTable,
    message_s: float,
    ends: RealTable,
    free: Reals,
    place: Ints,
) -> float:
    """The end of the last action, or -1 where devices wait for one another.

    `seconds` (3, num_stages) are those of each kind; with split backwards, a backward's are those
    of the gradient of its input. Scratch space: `ends` (2 * num_stages, num_micro), -1 at first,
    when the input of a forward or of a backward is there; `free` (3 * num_devices,), 0 at first,
    of devices, then of their links to the next device and to the one before; `place` a copy of the
    beginnings in ``order.first``.

    Notes
    -----
    O(actions + rounds * devices); each round runs what can run on every device.
    """
    first, kind, stage, micro = order.first, order.kind, order.stage, order.micro
    num_devices, num_stages = first.size - 1, ends.shape[0] // 2
    last = 0.0
    left = kind.size
    moved = True
    while moved:
        moved = False
        for k in range(num_devices):
            while place[k] < first[k + 1]:
                at = place[k]
                what, v, j = kind[at], stage[at], micro[at]
                begin = free[k]
                if what == FORWARD and v > 0:
                    if ends[v, j] < 0.0:
                        break
                    begin = max(begin, ends[v, j])
                if what == BACKWARD and v + 1 < num_stages:
                    if ends[num_stages + v, j] < 0.0:
                        break
                    begin = max(begin, ends[num_stages + v, j])
                done = begin + seconds[what, v]
                free[k] = done
                last = max(last, done)
                place[k] += 1
                left -= 1
                moved = True
                if what == FORWARD and v + 1 < num_stages:
                    link = num_devices + k
                    free[link] = max(free[link], done) + message_s
                    ends[v + 1, j] = free[link]
                    last = max(last, free[link])
                if what == BACKWARD and v > 0:
                    # Of two devices, the next one is the one before: they share a link.
                    link = (1 if num_devices == 2 else 2) * num_devices + k
                    free[link] = max(free[link], done) + message_s
                    ends[num_stages + v - 1, j] = free[link]
                    last = max(last, free[link])
    return -1.0 if left else last
