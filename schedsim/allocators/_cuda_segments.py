"""The compiled model of PyTorch's caching allocator; `caching` says what is modelled, with sources.

Times: an event takes O(log n) to find a block among n free ones and O(n) moves of one integer to
keep them sorted, which is below a microsecond for thousands of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..kernels.compiled import kernel
from ..kernels.record import Ints, Table
from ._blocks import (
    ADDRESS,
    ALLOCATED,
    IN_USE,
    LOOSE,
    NEXT,
    NONE,
    NUM_SEGMENTS,
    PAGE,
    RESERVED,
    SIZE,
    STATE,
    TOP,
    UNMAPPED,
    BlockTable,
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
from .caching import SMALL_SEGMENT

MIN_BLOCK = 512
SMALL_LIMIT = 1 << 20
LARGE_SEGMENT = 20 << 20
LARGE_LIMIT = 10 << 20
LARGE_STEP = 2 << 20
UNLIMITED = 1 << 60


@kernel
def find_free(
    table: Table,
    rows: Ints,
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
        # A block counts with the size to which it can grow.
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


@kernel
def new_segment(
    blocks: BlockTable,
    size: int,
    pool: int,
    capacity: int,
) -> Any:
    """A segment from the driver, as one block in use; -1 where the device has no room for it."""
    totals = blocks.totals
    if size <= SMALL_LIMIT:
        length = SMALL_SEGMENT
    elif size < LARGE_LIMIT:
        length = LARGE_SEGMENT
    else:
        length = (size + LARGE_STEP - 1) // LARGE_STEP * LARGE_STEP
    if totals[RESERVED] + length > capacity:
        return NONE
    row = new_block(blocks, totals[TOP], length, IN_USE, pool, 0)
    totals[TOP] += length
    totals[RESERVED] += length
    totals[NUM_SEGMENTS] += 1
    return row


@kernel
def give_back(
    blocks: BlockTable,
    row: int,
) -> None:
    """Return a whole, unused segment to the driver."""
    table, totals = blocks.table, blocks.totals
    take_free(blocks, row)
    totals[RESERVED] -= table[row, SIZE]
    totals[NUM_SEGMENTS] -= 1
    drop_block(blocks, row)


@kernel
def give_back_oversize(
    blocks: BlockTable,
    size: int,
    pool: int,
    max_split: int,
) -> Any:
    """Return oversize blocks, which may not be split, to the driver, just enough for `size`.

    The result says whether they are enough.
    """
    table, free, num_free = blocks.table, blocks.free, blocks.num_free
    wanted = max(size, max_split)
    rows = free[pool]
    at = lower_bound(table, rows, num_free[pool], wanted, NONE)
    if at < num_free[pool]:
        give_back(blocks, rows[at])
        return True
    released = 0
    while released < wanted and num_free[pool] > 0:
        row = rows[num_free[pool] - 1]
        if table[row, SIZE] < max_split:
            break
        released += table[row, SIZE]
        give_back(blocks, row)
    return released >= wanted


@kernel
def give_back_everything(
    blocks: BlockTable,
) -> None:
    """Return all unused segments, and the unused pages of growing ones."""
    table, free, num_free = blocks.table, blocks.free, blocks.num_free
    for pool in range(num_free.size):
        found = free[pool, : num_free[pool]].copy()
        for row in found:
            if table[row, PAGE] > 0:
                unmap_pages(blocks, row)
            elif loose_bytes(table, row) > 0:
                give_back(blocks, row)


@kernel
def run_caching(
    events: Ints,
    block_bytes: Ints,
    item_stream: Ints,
    blocks: BlockTable,
    capacity: int,
    max_split: int,
    expandable: bool,
    empty_before: int,
) -> Any:
    """Play `events`: ``i`` takes a block for item i, ``~i`` frees the block.

    Before event `empty_before`, everything cached is given back; earlier ones are not limited by
    `capacity`.

    Returns the number of events played; a table ``(4, num_events)`` of reserved, allocated and
    loose bytes and of segments after each event; the address of the block of each event; and how
    often the cache was emptied.
    """
    table, totals = blocks.table, blocks.totals
    free, num_free = blocks.free, blocks.num_free
    num_events = events.size
    totals[TOP] = LARGE_STEP
    row_of = np.full(block_bytes.size, NONE, np.int64)
    series = np.zeros((4, num_events), np.int64)
    address = np.zeros(num_events, np.int64)
    emptied = 0
    limit = UNLIMITED if empty_before > 0 else capacity
    for e in range(num_events):
        item = events[e]
        if e == empty_before:
            give_back_everything(blocks)
            limit = capacity
        if item < 0:
            row = row_of[~item]
            address[e] = table[row, ADDRESS]
            totals[ALLOCATED] -= table[row, SIZE]
            release_to_pool(blocks, row)
        else:
            size = block_bytes[item]
            pool = 2 * item_stream[item] + (1 if size > SMALL_LIMIT else 0)
            row = find_free(table, free[pool], num_free[pool], size, max_split, expandable)
            if row >= 0:
                take_free(blocks, row)
            for attempt in range(3):
                if row >= 0:
                    break
                if attempt == 1:
                    if expandable or max_split >= UNLIMITED:
                        continue
                    if not give_back_oversize(blocks, size, pool, max_split):
                        continue
                elif attempt == 2:
                    give_back_everything(blocks)
                    emptied += 1
                if expandable:
                    row = grow(blocks, size, pool, limit)
                else:
                    row = new_segment(blocks, size, pool, limit)
            if row < 0:
                return e, series, address, emptied
            rest = table[row, SIZE] - size
            if pool % 2 == 0 or expandable:
                split = rest >= MIN_BLOCK
            else:
                split = size < max_split and rest > SMALL_LIMIT
            if split:
                front = split_off(blocks, row, size, IN_USE)
                add_free(blocks, row)
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
