"""Blocks that the code of a compiled layer hands from one tensor to a later one.

torch.compile makes one function of a layer's forward, and one of its backward. Such a function asks
the allocator for a tensor only if no tensor of the same size and format is done with: it hands on
the block of the one that was done with last (``AllocateLine`` and ``FreeIfNotReusedLine`` of
``torch._inductor.codegen.wrapper``), unless the function would then hold more at its peak, because
the block waits. PyTorch of 2024 hands it on in any case. A pointwise kernel also writes over an
input that nothing reads after it. Kernels of libraries ask for their outputs themselves. The gaps
that the allocator is left with follow from this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..allocators import Requests
from .tape import RankOp

LIBRARY_KINDS = frozenset({"attention", "core", "complex", "gather", "scatter"})
"""Kinds of ops whose outputs come from a library: attention, messages, complex products."""

_OF_CODE = frozenset("AD")
"""First words of the names of tensors that belong to the code alone: not weights' gradients."""


def hand_over(
    requests: Requests,
    codes: Sequence[tuple[int, int]],
    ops: Sequence[RankOp | None],
    *,
    always: bool = False,
) -> Requests:
    """`requests` with the blocks that compiled code hands on.

    Parameters
    ----------
    requests
        Of a step on one stream: run r asks at event 2 r, and frees at event 2 r + 1.
    codes
        The first run of each compiled function, and the run after its last, ascending.
    ops
        The op of each run in its layer; ``None`` for runs that are of no layer.
    always
        Whether a block is handed on though the peak rises.

    Returns
    -------
    Requests
        The release of a tensor and the request for its successor are left out, and the successor
        is the same item.

    Notes
    -----
    O(n) for n requests, times the runs that a block waits for.
    """
    items: list[int] = requests.items.tolist()
    events: list[int] = requests.events.tolist()
    sizes: list[int] = requests.item_bytes.tolist()
    names = requests.item_names
    at: defaultdict[int, list[int]] = defaultdict(list)  # event -> places of its requests
    for place, event in enumerate(events):
        at[event].append(place)
    block = list(range(len(sizes)))
    dropped = np.zeros(len(items), dtype=bool)

    held = _held(requests)

    def is_of_code(item: int) -> bool:
        return names[item].partition(" ")[0] in _OF_CODE

    def waits(left: int, run: int, before: int, most: int) -> bool:
        """Whether the block left at a place may wait for `run`, which comes after run `before`."""
        since = events[left] // 2
        between = max(held[since + 1 : run], default=0)
        return since == before or sizes[~items[left]] + between <= most

    for start, stop in codes:
        made: dict[int, int] = {}  # item -> bytes of each of its numbers
        # (bytes, bytes of a number) -> places of the releases of such tensors, in order
        free: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        most = max(held[start:stop], default=0)
        before = start
        for run in range(start, stop):
            op = ops[run]
            if op is None:
                continue
            asked = [place for place in at[2 * run] if items[place] >= 0]
            freed = [place for place in at[2 * run + 1] if ~items[place] in made]
            over = freed if op.kind == "pointwise" and len(asked) == 1 else []
            for place in asked if op.kind not in LIBRARY_KINDS else []:
                item = items[place]
                if not is_of_code(item):
                    continue
                like = sizes[item], op.element_bytes
                same = [one for one in over if (sizes[~items[one]], made[~items[one]]) == like]
                source = same or free[like]
                if source and (always or source is same or waits(source[-1], run, before, most)):
                    left = source.pop()
                    block[item] = block[~items[left]]
                    dropped[[left, place]] = True
            before = run
            made |= {items[place]: op.element_bytes for place in asked}
            for place in freed:
                if is_of_code(~items[place]) and not dropped[place]:
                    free[sizes[~items[place]], made[~items[place]]].append(place)
    blocks, released = np.array(block, dtype=np.int64), requests.items < 0
    found = blocks[np.where(released, ~requests.items, requests.items)]
    kept = ~dropped
    return replace(
        requests, items=np.where(released, ~found, found)[kept], events=requests.events[kept]
    )


def _held(requests: Requests) -> list[int]:
    """Bytes that activations, their gradients and those of weights hold during each run."""
    mine = np.array([name.partition(" ")[0] in ("A", "D", "G") for name in requests.item_names])
    item = np.where(requests.items < 0, ~requests.items, requests.items)
    change = np.where(requests.items < 0, -1, 1) * requests.item_bytes[item] * mine[item]
    total = np.zeros(requests.num_events + 2, dtype=np.int64)
    np.add.at(total, np.maximum(requests.events, 0), change)
    found: list[int] = np.cumsum(total)[::2].tolist()
    return found
