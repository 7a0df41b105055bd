"""The compiled model of PyTorch's caching allocator; `caching` says what it models and from where.

Times: an event takes O(log n) to find a block among n free ones and O(n) moves of one integer to
keep them sorted, which is below a microsecond for thousands of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.cached import njit
from ._blocks import (
    ADDRESS,
    ALLOCATED,
    IN_USE,
    LOOSE,
    NEXT,
    NONE,
    NUM_COLUMNS,
    NUM_SEGMENTS,
    NUM_TOTALS,
    PAGE,
    RESERVED,
    SIZE,
    STATE,
    TOP,
    UNMAPPED,
    add_free,
    drop_block,
    loose_bytes,
    lower_bound,
    new_block,
    release_to_pool,
    split_off,
    take_free,
)
from ._growing import grow, unmap_pages

MIN_BLOCK = 512
SMALL_LIMIT = 1 << 20
SMALL_SEGMENT = 2 << 20
LARGE_SEGMENT = 20 << 20
LARGE_LIMIT = 10 << 20
LARGE_STEP = 2 << 20
UNLIMITED = 1 << 60


@njit(cache=True)
def find_free(
    table: NDArray[np.int64],
    rows: NDArray[np.int64],
    count: int,
    size: int,
    max_split: int,
    expandable: bool,
) -> Any:
    """The best fit among free blocks, or -1."""
    at = lower_bound(table, rows, count, size, NONE)
    if at == count:
        return NONE
    row = rows[at]
    if expandable:
        # A block counts for what it can grow to.
        room = table[row, SIZE]
        after = table[row, NEXT]
        if after >= 0 and table[after, STATE] == UNMAPPED:
            room += table[after, SIZE]
        for i in range(at + 1, count):
            other = rows[i]
            other_room = table[other, SIZE]
            after = table[other, NEXT]
            if after >= 0 and table[after, STATE] == UNMAPPED:
                other_room += table[after, SIZE]
            if other_room >= room:
                break
            row, room = other, other_room
    if size < max_split and table[row, SIZE] >= max_split:
        return NONE
    if size >= max_split and table[row, SIZE] >= size + LARGE_SEGMENT:
        return NONE
    return row


@njit(cache=True)
def new_segment(
    table: NDArray[np.int64],
    spare: NDArray[np.int64],
    totals: NDArray[np.int64],
    size: int,
    pool: int,
    capacity: int,
) -> Any:
    """A segment from the driver, as one block in use; -1 where the device has no room for it."""
    if size <= SMALL_LIMIT:
        length = SMALL_SEGMENT
    elif size < LARGE_LIMIT:
        length = LARGE_SEGMENT
    else:
        length = (size + LARGE_STEP - 1) // LARGE_STEP * LARGE_STEP
    if totals[RESERVED] + length > capacity:
        return NONE
    row = new_block(table, spare, totals, totals[TOP], length, IN_USE, pool, 0)
    totals[TOP] += length
    totals[RESERVED] += length
    totals[NUM_SEGMENTS] += 1
    return row


@njit(cache=True)
def give_back(
    table: NDArray[np.int64],
    free: NDArray[np.int64],
    num_free: NDArray[np.int64],
    spare: NDArray[np.int64],
    totals: NDArray[np.int64],
    row: int,
) -> None:
    """Return a whole, unused segment to the driver."""
    take_free(table, free, num_free, totals, row)
    totals[RESERVED] -= table[row, SIZE]
    totals[NUM_SEGMENTS] -= 1
    drop_block(table, spare, totals, row)


@njit(cache=True)
def give_back_oversize(
    table: NDArray[np.int64],
    free: NDArray[np.int64],
    num_free: NDArray[np.int64],
    spare: NDArray[np.int64],
    totals: NDArray[np.int64],
    size: int,
    pool: int,
    max_split: int,
) -> Any:
    """Return blocks that may not be split, just enough for `size`; whether it is enough."""
    wanted = max(size, max_split)
    rows = free[pool]
    at = lower_bound(table, rows, num_free[pool], wanted, NONE)
    if at < num_free[pool]:
        give_back(table, free, num_free, spare, totals, rows[at])
        return True
    released = 0
    while released < wanted and num_free[pool] > 0:
        row = rows[num_free[pool] - 1]
        if table[row, SIZE] < max_split:
            break
        released += table[row, SIZE]
        give_back(table, free, num_free, spare, totals, row)
    return released >= wanted


@njit(cache=True)
def give_back_everything(
    table: NDArray[np.int64],
    free: NDArray[np.int64],
    num_free: NDArray[np.int64],
    spare: NDArray[np.int64],
    totals: NDArray[np.int64],
) -> None:
    """Return all unused segments, and the unused pages of growing ones."""
    for pool in range(num_free.size):
        found = free[pool, : num_free[pool]].copy()
        for row in found:
            if table[row, PAGE] > 0:
                unmap_pages(table, free, num_free, spare, totals, row)
            elif loose_bytes(table, row) > 0:
                give_back(table, free, num_free, spare, totals, row)


@njit(cache=True)
def run_caching(
    events: NDArray[np.int64],
    block_bytes: NDArray[np.int64],
    item_stream: NDArray[np.int64],
    num_streams: int,
    capacity: int,
    max_split: int,
    expandable: bool,
) -> Any:
    """Play `events`: ``i`` takes a block for item i, ``~i`` gives it back.

    Returns (number of events played; reserved, allocated, loose bytes and segments after
    each event, address of the block of each event, number of times that the cache was emptied).
    """
    num_events = events.size
    num_pools = 2 * num_streams
    num_rows = 4 * num_events + 8 * num_pools + 16
    table = np.empty((num_rows, NUM_COLUMNS), np.int64)
    free = np.empty((num_pools, num_rows), np.int64)
    num_free = np.zeros(num_pools, np.int64)
    spare = np.empty(num_rows, np.int64)
    totals = np.zeros(NUM_TOTALS, np.int64)
    totals[TOP] = LARGE_STEP
    heads = np.full(num_pools, NONE, np.int64)
    row_of = np.full(block_bytes.size, NONE, np.int64)
    series = np.zeros((4, num_events), np.int64)
    address = np.zeros(num_events, np.int64)
    emptied = 0
    for e in range(num_events):
        item = events[e]
        if item < 0:
            row = row_of[~item]
            address[e] = table[row, ADDRESS]
            totals[ALLOCATED] -= table[row, SIZE]
            release_to_pool(table, free, num_free, spare, totals, row)
        else:
            size = block_bytes[item]
            pool = 2 * item_stream[item] + (1 if size > SMALL_LIMIT else 0)
            row = find_free(table, free[pool], num_free[pool], size, max_split, expandable)
            if row >= 0:
                take_free(table, free, num_free, totals, row)
            for attempt in range(3):
                if row >= 0:
                    break
                if attempt == 1:
                    if expandable or max_split >= UNLIMITED:
                        continue
                    if not give_back_oversize(
                        table, free, num_free, spare, totals, size, pool, max_split
                    ):
                        continue
                elif attempt == 2:
                    give_back_everything(table, free, num_free, spare, totals)
                    emptied += 1
                if expandable:
                    row = grow(table, free, num_free, spare, totals, heads, size, pool, capacity)
                else:
                    row = new_segment(table, spare, totals, size, pool, capacity)
            if row < 0:
                return e, series, address, emptied
            rest = table[row, SIZE] - size
            if pool % 2 == 0 or expandable:
                split = rest >= MIN_BLOCK
            else:
                split = size < max_split and rest > SMALL_LIMIT
            if split:
                front = split_off(table, spare, totals, row, size, IN_USE)
                add_free(table, free, num_free, totals, row)
                row = front
            table[row, STATE] = IN_USE
            row_of[item] = row
            address[e] = table[row, ADDRESS]
            totals[ALLOCATED] += table[row, SIZE]
        series[0, e] = totals[RESERVED]
        series[1, e] = totals[ALLOCATED]
        series[2, e] = totals[LOOSE]
        series[3, e] = totals[NUM_SEGMENTS]
    return num_events, series, address, emptied
