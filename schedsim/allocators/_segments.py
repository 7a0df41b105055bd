"""The compiled model of PyTorch's caching allocator; `caching` says what it models and from where.

Times: an event takes O(log n) to find a block among n free ones and O(n) moves of one integer to
keep them sorted, which is below a microsecond for thousands of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ._blocks import (
    ADDRESS,
    ALLOCATED,
    FREE,
    GROWING_SPACE,
    IN_USE,
    LOOSE,
    NEXT,
    NONE,
    NUM_COLUMNS,
    NUM_SEGMENTS,
    NUM_TOTALS,
    PAGE,
    PREVIOUS,
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
    whole_pages,
)

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
def map_pages(
    table: NDArray[np.int64],
    free: NDArray[np.int64],
    num_free: NDArray[np.int64],
    spare: NDArray[np.int64],
    totals: NDArray[np.int64],
    row: int,
    size: int,
    capacity: int,
) -> Any:
    """Put memory behind the first pages of an unmapped block; the free block that has them, or -1.

    An unmapped block begins and ends at a page.
    """
    page = table[row, PAGE]
    length = (size + page - 1) // page * page
    if totals[RESERVED] + length > capacity:
        return NONE
    totals[RESERVED] += length
    mapped = row
    if length < table[row, SIZE]:
        mapped = split_off(table, spare, totals, row, length, IN_USE)
    release_to_pool(table, free, num_free, spare, totals, mapped)
    return mapped


@njit(cache=True)
def grow(
    table: NDArray[np.int64],
    free: NDArray[np.int64],
    num_free: NDArray[np.int64],
    spare: NDArray[np.int64],
    totals: NDArray[np.int64],
    heads: NDArray[np.int64],
    size: int,
    pool: int,
    capacity: int,
) -> Any:
    """A block of a growing segment, taken from the free ones, at the lowest address with room."""
    if heads[pool] < 0:
        page = SMALL_SEGMENT if pool % 2 == 0 else LARGE_SEGMENT
        start = GROWING_SPACE * (pool + 1)
        length = GROWING_SPACE // page * page
        # A guard in use that never moves: the way into the line of blocks.
        guard = new_block(table, spare, totals, start, 0, IN_USE, pool, page)
        space = new_block(table, spare, totals, start, length, UNMAPPED, pool, page)
        table[guard, NEXT] = space
        table[space, PREVIOUS] = guard
        heads[pool] = guard
        totals[NUM_SEGMENTS] += 1
    row = table[heads[pool], NEXT]
    while True:
        while table[row, STATE] != UNMAPPED:
            row = table[row, NEXT]
        start = row
        if table[table[row, PREVIOUS], STATE] == FREE:
            start = table[row, PREVIOUS]
        room, after = 0, start
        while room < size and after >= 0 and table[after, STATE] != IN_USE:
            room += table[after, SIZE]
            after = table[after, NEXT]
        if room >= size:
            break
        row = table[row, NEXT]
    row = start
    if table[row, STATE] == UNMAPPED:
        length = min(table[row, SIZE], size)
        row = map_pages(table, free, num_free, spare, totals, row, length, capacity)
        if row < 0:
            return NONE
    while table[row, SIZE] < size:
        unmapped = table[row, NEXT]
        length = min(table[unmapped, SIZE], size - table[row, SIZE])
        row = map_pages(table, free, num_free, spare, totals, unmapped, length, capacity)
        if row < 0:
            return NONE
    take_free(table, free, num_free, totals, row)
    return row


@njit(cache=True)
def unmap_pages(
    table: NDArray[np.int64],
    free: NDArray[np.int64],
    num_free: NDArray[np.int64],
    spare: NDArray[np.int64],
    totals: NDArray[np.int64],
    row: int,
) -> None:
    """Give back the whole pages in a free block of a growing segment."""
    start, end = whole_pages(table, row)
    if end == start:
        return
    take_free(table, free, num_free, totals, row)
    if start > table[row, ADDRESS]:
        front = split_off(table, spare, totals, row, start - table[row, ADDRESS], IN_USE)
        add_free(table, free, num_free, totals, front)
    middle = row
    if end < table[row, ADDRESS] + table[row, SIZE]:
        middle = split_off(table, spare, totals, row, end - start, UNMAPPED)
        add_free(table, free, num_free, totals, row)
    table[middle, STATE] = UNMAPPED
    totals[RESERVED] -= end - start
    before, after = table[middle, PREVIOUS], table[middle, NEXT]
    if before >= 0 and table[before, STATE] == UNMAPPED:
        table[middle, ADDRESS] = table[before, ADDRESS]
        table[middle, SIZE] += table[before, SIZE]
        drop_block(table, spare, totals, before)
    if after >= 0 and table[after, STATE] == UNMAPPED:
        table[middle, SIZE] += table[after, SIZE]
        drop_block(table, spare, totals, after)


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
