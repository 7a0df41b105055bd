"""Blocks of memory in compiled code: a table of blocks, and free blocks in order of size.

A block is a row of an int64 table: a kernel can change a row in place, which a Python object would
not allow. Neighbouring blocks of a segment are linked. The free blocks of a pool are in a list
sorted by size, then address, in which binary search finds the best fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..kernels.compiled import kernel
from ..kernels.record import Ints, Record, Table

# Columns of the table. `PAGE` is the page size of a growing segment, 0 in any other.
ADDRESS, SIZE, PREVIOUS, NEXT, STATE, POOL, PAGE = range(7)
NUM_COLUMNS = 7
# States. An unmapped block is address space of a growing segment with no memory behind it.
IN_USE, FREE, UNMAPPED = 0, 1, 2
NONE = -1
# Addresses of growing segments are far from those of others, and of each other.
GROWING_SPACE = 1 << 50

# Entries of the totals. Loose: free bytes that could be returned to the device at once.
RESERVED, ALLOCATED, LOOSE, NUM_ROWS, NUM_SPARE, TOP, NUM_SEGMENTS = range(7)
NUM_TOTALS = 7


@dataclass(frozen=True, eq=False)
class BlockTable(Record):
    """All blocks of an allocator; every array is changed in place.

    Attributes
    ----------
    table : (num_rows, NUM_COLUMNS)
    free, num_free : (num_pools, num_rows), (num_pools,)
        Rows of the free blocks of each pool, by size and then address; their number.
    spare : (num_rows,)
        Rows that are not in use, on a stack.
    totals : (NUM_TOTALS,)
    heads : (num_pools,)
        The first row of the growing segment of each pool; `NONE` before there is one.
    """

    table: Table
    free: Table
    num_free: Ints
    spare: Ints
    totals: Ints
    heads: Ints


def make_blocks(num_events: int, num_pools: int) -> BlockTable:
    """A table large enough for `num_events` events, each of which makes at most four blocks."""
    num_rows = 4 * num_events + 8 * num_pools + 16
    return BlockTable(
        table=np.empty((num_rows, NUM_COLUMNS), np.int64),
        free=np.empty((num_pools, num_rows), np.int64),
        num_free=np.zeros(num_pools, np.int64),
        spare=np.empty(num_rows, np.int64),
        totals=np.zeros(NUM_TOTALS, np.int64),
        heads=np.full(num_pools, NONE, np.int64),
    )


@kernel
def new_block(
    blocks: BlockTable,
    address: int,
    size: int,
    state: int,
    pool: int,
    page: int,
) -> Any:
    """A row for a block without neighbours."""
    table, spare, totals = blocks.table, blocks.spare, blocks.totals
    if totals[NUM_SPARE] > 0:
        totals[NUM_SPARE] -= 1
        row = spare[totals[NUM_SPARE]]
    else:
        row = totals[NUM_ROWS]
        totals[NUM_ROWS] += 1
    table[row, ADDRESS] = address
    table[row, SIZE] = size
    table[row, PREVIOUS] = NONE
    table[row, NEXT] = NONE
    table[row, STATE] = state
    table[row, POOL] = pool
    table[row, PAGE] = page
    return row


@kernel
def drop_block(blocks: BlockTable, row: int) -> None:
    """Unlink the block from its segment, and free its row."""
    table, spare, totals = blocks.table, blocks.spare, blocks.totals
    before, after = table[row, PREVIOUS], table[row, NEXT]
    if before >= 0:
        table[before, NEXT] = after
    if after >= 0:
        table[after, PREVIOUS] = before
    spare[totals[NUM_SPARE]] = row
    totals[NUM_SPARE] += 1


@kernel
def insert_before(table: Table, row: int, after: int) -> None:
    """Link `row` into the segment of `after`, right before it."""
    before = table[after, PREVIOUS]
    table[row, PREVIOUS] = before
    table[row, NEXT] = after
    table[after, PREVIOUS] = row
    if before >= 0:
        table[before, NEXT] = row


@kernel
def lower_bound(table: Table, rows: Ints, count: int, size: int, address: int) -> Any:
    """Index of the first entry of the sorted `rows` that is at least ``(size, address)``."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        row = rows[middle]
        if table[row, SIZE] < size or (table[row, SIZE] == size and table[row, ADDRESS] < address):
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def whole_pages(table: Table, row: int) -> Any:
    """Start and end of the whole pages of a growing segment that lie in the block."""
    page = table[row, PAGE]
    base = table[row, ADDRESS] // GROWING_SPACE * GROWING_SPACE
    start = base + (table[row, ADDRESS] - base + page - 1) // page * page
    end = base + (table[row, ADDRESS] + table[row, SIZE] - base) // page * page
    return start, max(start, end)


@kernel
def loose_bytes(table: Table, row: int) -> Any:
    """Bytes of a free block that could be returned to the device: a whole segment, or pages."""
    if table[row, PAGE] > 0:
        start, end = whole_pages(table, row)
        return end - start
    whole = table[row, PREVIOUS] < 0 and table[row, NEXT] < 0
    return table[row, SIZE] if whole else 0


@kernel
def add_free(
    blocks: BlockTable,
    row: int,
) -> None:
    """Insert a block into the free blocks of its pool."""
    table, free, num_free, totals = blocks.table, blocks.free, blocks.num_free, blocks.totals
    pool = table[row, POOL]
    rows = free[pool]
    count = num_free[pool]
    at = lower_bound(table, rows, count, table[row, SIZE], table[row, ADDRESS])
    for i in range(count, at, -1):
        rows[i] = rows[i - 1]
    rows[at] = row
    num_free[pool] = count + 1
    table[row, STATE] = FREE
    totals[LOOSE] += loose_bytes(table, row)


@kernel
def take_free(
    blocks: BlockTable,
    row: int,
) -> None:
    """Remove a block from the free blocks of its pool."""
    table, free, num_free, totals = blocks.table, blocks.free, blocks.num_free, blocks.totals
    pool = table[row, POOL]
    rows = free[pool]
    at = lower_bound(table, rows, num_free[pool], table[row, SIZE], table[row, ADDRESS])
    num_free[pool] -= 1
    for i in range(at, num_free[pool]):
        rows[i] = rows[i + 1]
    totals[LOOSE] -= loose_bytes(table, row)


@kernel
def split_off(
    blocks: BlockTable,
    row: int,
    size: int,
    state: int,
) -> Any:
    """A new block of the first `size` bytes of `row`, which keeps the rest."""
    table = blocks.table
    front = new_block(
        blocks,
        table[row, ADDRESS],
        size,
        state,
        table[row, POOL],
        table[row, PAGE],
    )
    insert_before(table, front, row)
    table[row, ADDRESS] += size
    table[row, SIZE] -= size
    return front


@kernel
def release_to_pool(
    blocks: BlockTable,
    row: int,
) -> None:
    """Free a block, and merge it with free neighbours."""
    table = blocks.table
    before = table[row, PREVIOUS]
    if before >= 0 and table[before, STATE] == FREE:
        take_free(blocks, before)
        table[row, ADDRESS] = table[before, ADDRESS]
        table[row, SIZE] += table[before, SIZE]
        drop_block(blocks, before)
    after = table[row, NEXT]
    if after >= 0 and table[after, STATE] == FREE:
        take_free(blocks, after)
        table[row, SIZE] += table[after, SIZE]
        drop_block(blocks, after)
    add_free(blocks, row)
