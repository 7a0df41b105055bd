"""An order of micro-batches as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..kernels.record import Codes, Ints, Record
from .orders import make_order


@dataclass(frozen=True, eq=False)
class OrderArrays(Record):
    """An order as arrays: device ``k`` runs actions ``first[k]`` to ``first[k + 1]``.

    `kind` is 0 for a forward, 1 for a backward, 2 for the gradients of weights.
    """

    first: Ints
    kind: Codes
    stage: Ints
    micro: Ints


@lru_cache(maxsize=64)
def order_arrays(
    schedule: str, num_devices: int, num_micro_batches: int, num_chunks: int
) -> OrderArrays:
    """The order called `schedule`, as arrays; O(actions)."""
    order = make_order(schedule, num_devices, num_micro_batches, num_chunks)
    actions = [action for device in order for action in device]
    return OrderArrays(
        np.concatenate([[0], np.cumsum([len(device) for device in order])]).astype(np.int64),
        np.array(["FBW".index(action.kind) for action in actions], dtype=np.int8),
        np.array([action.stage for action in actions], dtype=np.int64),
        np.array([action.micro for action in actions], dtype=np.int64),
    )
