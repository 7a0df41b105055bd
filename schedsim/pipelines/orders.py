"""Orders of a pipeline: the actions of each device, one after another.

An order is a list of actions for each device. An action is the forward ``F`` or the backward ``B``
of a stage for a micro-batch. If the backward is split, ``B`` makes the gradient of the input and
``W`` the gradients of the weights.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ..errors import SchedsimError


class Action(NamedTuple):
    """An action of a device: ``F``, ``B`` or ``W`` of a stage for a micro-batch."""

    kind: str
    stage: int
    micro: int

    def __str__(self) -> str:
        return f"{self.kind}{self.stage}.{self.micro}"


Order = tuple[tuple[Action, ...], ...]


def gpipe(num_devices: int, num_micro_batches: int) -> Order:
    """All forwards, then all backwards, last micro-batch first.

    References
    ----------
    Huang et al. 2019, "GPipe", NeurIPS, arXiv 1811.06965, figure 2c.

    Examples
    --------
    >>> [str(action) for action in gpipe(2, 2)[0]]
    ['F0.0', 'F0.1', 'B0.1', 'B0.0']
    """
    micros = range(num_micro_batches)
    return tuple(
        (
            *(Action("F", k, j) for j in micros),
            *(Action("B", k, j) for j in reversed(micros)),
        )
        for k in range(num_devices)
    )


def one_f_one_b(num_devices: int, num_micro_batches: int) -> Order:
    """One forward, one backward in turn: stage k of K holds at most K - k micro-batches.

    References
    ----------
    Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using
    Megatron-LM", SC, arXiv 2104.04473, figure 4 (top).

    Examples
    --------
    >>> [str(action) for action in one_f_one_b(2, 3)[0]]
    ['F0.0', 'F0.1', 'B0.0', 'F0.2', 'B0.1', 'B0.2']
    """
    return tuple(
        _alternating(
            [Action("F", k, j) for j in range(num_micro_batches)],
            [Action("B", k, j) for j in range(num_micro_batches)],
            num_devices - k - 1,
        )
        for k in range(num_devices)
    )


def interleaved(num_devices: int, num_micro_batches: int, num_chunks: int) -> Order:
    """1F1B with several stages per device, in groups of as many micro-batches as devices.

    With K devices and m chunks, the first device holds ``K m + K - 1`` micro-batches of a stage,
    which
    is 1 + (K - 1) / (K m) times the memory of 1F1B.

    Raises
    ------
    SchedsimError
        The number of micro-batches is not a multiple of the number of devices.

    References
    ----------
    Narayanan et al. 2021, figure 4 (bottom) and section 2.2.

    Examples
    --------
    >>> [str(action) for action in interleaved(2, 2, 2)[0]]
    ['F0.0', 'F0.1', 'F2.0', 'F2.1', 'B2.0', 'B2.1', 'B0.0', 'B0.1']
    """
    if num_micro_batches % num_devices:
        raise SchedsimError(
            f"{num_micro_batches} micro-batches are not a multiple of {num_devices} devices",
            hint="the interleaved order goes in groups of as many micro-batches as devices",
        )
    order = []
    for k in range(num_devices):
        turns = [
            (chunk, group + j)
            for group in range(0, num_micro_batches, num_devices)
            for chunk in range(num_chunks)
            for j in range(num_devices)
        ]
        forward = [Action("F", chunk * num_devices + k, j) for chunk, j in turns]
        last = num_chunks - 1
        backward = [Action("B", (last - chunk) * num_devices + k, j) for chunk, j in turns]
        ahead = 2 * (num_devices - k - 1) + last * num_devices
        order.append(_alternating(forward, backward, ahead))
    return tuple(order)


def zero_bubble(num_devices: int, num_micro_batches: int, most_owed: int | None = None) -> Order:
    """1F1B with delayed weight gradients: device k delays at most k of them.

    This is ZB-H1 of the paper: no device holds more than with 1F1B, and the bubble is (K - 1) (F +
    B -
    W) instead of (K - 1) (F + B + W). The inputs of W are held until W has run, so fewer delayed
    weight
    gradients need less memory.

    Parameters
    ----------
    most_owed
        The most weight gradients that a device may delay; with 0 the order is 1F1B.

    References
    ----------
    Qi, Wan, Huang, Lin 2024, "Zero bubble pipeline parallelism", ICLR, arXiv 2401.10241,
    section 2.3 and figure 2.

    Examples
    --------
    >>> [str(action) for action in zero_bubble(2, 2)[1]]
    ['F1.0', 'B1.0', 'F1.1', 'B1.1', 'W1.0', 'W1.1']
    """
    order = []
    for k, actions in enumerate(one_f_one_b(num_devices, num_micro_batches)):
        found: list[Action] = []
        owed: deque[Action] = deque()
        for action in actions:
            found.append(action)
            if action.kind == "B":
                owed.append(Action("W", k, action.micro))
                if len(owed) > min(k, num_devices if most_owed is None else most_owed):
                    found.append(owed.popleft())
        order.append((*found, *owed))
    return tuple(order)


def _alternating(forward: list[Action], backward: list[Action], ahead: int) -> tuple[Action, ...]:
    """`ahead` forwards, then a forward and a backward in turn, then the remaining backwards."""
    ahead = min(ahead, len(forward))
    found = forward[:ahead]
    for next_forward, next_backward in zip(forward[ahead:], backward, strict=False):
        found += [next_forward, next_backward]
    return (*found, *backward[len(forward) - ahead :])


ORDERS: dict[str, Callable[..., Order]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zero-bubble": zero_bubble,
}
"""Orders by name; only ``interleaved`` takes the number of chunks too."""


def make_order(
    name: str,
    num_devices: int,
    num_micro_batches: int,
    num_chunks: int = 1,
    *,
    most_owed: int | None = None,
) -> Order:
    """The order called `name`; `most_owed` is an option of ``zero-bubble``.

    Raises
    ------
    SchedsimError
        There is no such order, or it does not allow the given numbers.
    """
    if name not in ORDERS:
        raise SchedsimError(f"schedule {name!r} is unknown", hint=f"one of {', '.join(ORDERS)}")
    if name == "interleaved":
        return interleaved(num_devices, num_micro_batches, num_chunks)
    if num_chunks != 1:
        raise SchedsimError(
            f"schedule {name!r} takes one stage per device, not {num_chunks}",
            hint="several chunks per device need the interleaved schedule",
        )
    if name == "zero-bubble":
        return zero_bubble(num_devices, num_micro_batches, most_owed)
    return ORDERS[name](num_devices, num_micro_batches)


def most_in_flight(order: Order) -> tuple[tuple[dict[int, int], ...], ...]:
    """The micro-batches in flight on each device: stage -> number begun and not finished.

    For each device the maximal counts, taken when an action begins (the action counts as in
    flight). A
    micro-batch of a stage is finished after its ``W``, or after its ``B`` if there is no ``W``.
    """
    found = []
    for actions in order:
        split = any(action.kind == "W" for action in actions)
        held: dict[int, int] = {}
        maximal: list[dict[int, int]] = []
        for action in actions:
            if action.kind == "F":
                held[action.stage] = held.get(action.stage, 0) + 1
            now = dict(held)
            if not any(_covers(other, now) for other in maximal):
                maximal = [other for other in maximal if not _covers(now, other)] + [now]
            if action.kind == ("W" if split else "B"):
                held[action.stage] -= 1
        found.append(tuple(maximal))
    return tuple(found)


def _covers(one: dict[int, int], other: dict[int, int]) -> bool:
    return all(one.get(stage, 0) >= count for stage, count in other.items())
