"""Blocks of memory in compiled code: a table of them, and free ones in order of size.

A block is a row of an int64 table. Blocks that touch in one segment are linked; free blocks of a
pool stand in a list sorted by size, then address, in which the best fit is found by halving.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.cached import njit

# Columns of the table. `PAGE` is the page size of a growing segment, 0 in any other.
ADDRESS, SIZE, PREVIOUS, NEXT, STATE, POOL, PAGE = range(7)
NUM_COLUMNS = 7
# States. An unmapped block is address space of a growing segment with no memory behind it.
IN_USE, FREE, UNMAPPED = 0, 1, 2
NONE = -1
# Addresses of growing segments are far from those of others, and of each other.
GROWING_SPACE = 1 << 50

# Entries of the totals. Loose: free bytes that could be given back to the device at once.
RESERVED, ALLOCATED, LOOSE, NUM_ROWS, NUM_SPARE, TOP, NUM_SEGMENTS = range(7)
NUM_TOTALS = 7


@njit(cache=True)
def new_block(
    table: NDArray[np.int64],
    spare: NDArray[np.int64],
    totals: NDArray[np.int64],
    address: int,
    size: int,
    state: int,
    pool: int,
    page: int,
) -> Any:
    """A row for a block that touches no other yet."""
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


@njit(cache=True)
def drop_block(
    table: NDArray[np.int64], spare: NDArray[np.int64], totals: NDArray[np.int64], row: int
) -> None:
    """Give the row back, after taking the block out of the line of its segment."""
    before, after = table[row, PREVIOUS], table[row, NEXT]
    if before >= 0:
        table[before, NEXT] = after
    if after >= 0:
        table[after, PREVIOUS] = before
    spare[totals[NUM_SPARE]] = row
    totals[NUM_SPARE] += 1


@njit(cache=True)
def insert_before(table: NDArray[np.int64], row: int, after: int) -> None:
    """Link `row` into the segment of `after`, right before it."""
    before = table[after, PREVIOUS]
    table[row, PREVIOUS] = before
    table[row, NEXT] = after
    table[after, PREVIOUS] = row
    if before >= 0:
        table[before, NEXT] = row


@njit(cache=True)
def lower_bound(
    table: NDArray[np.int64], rows: NDArray[np.int64], count: int, size: int, address: int
) -> Any:
    """Where the first of the sorted `rows` stands that is at least ``(size, address)``."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        row = rows[middle]
        if table[row, SIZE] < size or (table[row, SIZE] == size and table[row, ADDRESS] < address):
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True)
def whole_pages(table: NDArray[np.int64], row: int) -> Any:
    """The pages of a growing segment that lie in the block: where they start and end."""
    page = table[row, PAGE]
    base = table[row, ADDRESS] // GROWING_SPACE * GROWING_SPACE
    start = base + (table[row, ADDRESS] - base + page - 1) // page * page
    end = base + (table[row, ADDRESS] + table[row, SIZE] - base) // page * page
    return start, max(start, end)


@njit(cache=True)
def loose_bytes(table: NDArray[np.int64], row: int) -> Any:
    """Bytes of a free block that could be given back: a whole segment, or pages of one."""
    if table[row, PAGE] > 0:
        start, end = whole_pages(table, row)
        return end - start
    whole = table[row, PREVIOUS] < 0 and table[row, NEXT] < 0
    return table[row, SIZE] if whole else 0


@njit(cache=True)
def add_free(
    table: NDArray[np.int64],
    free: NDArray[np.int64],
    num_free: NDArray[np.int64],
    totals: NDArray[np.int64],
    row: int,
) -> None:
    """Put a block among the free ones of its pool."""
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


@njit(cache=True)
def take_free(
    table: NDArray[np.int64],
    free: NDArray[np.int64],
    num_free: NDArray[np.int64],
    totals: NDArray[np.int64],
    row: int,
) -> None:
    """Take a block from the free ones of its pool."""
    pool = table[row, POOL]
    rows = free[pool]
    at = lower_bound(table, rows, num_free[pool], table[row, SIZE], table[row, ADDRESS])
    num_free[pool] -= 1
    for i in range(at, num_free[pool]):
        rows[i] = rows[i + 1]
    totals[LOOSE] -= loose_bytes(table, row)


@njit(cache=True)
def split_off(
    table: NDArray[np.int64],
    spare: NDArray[np.int64],
    totals: NDArray[np.int64],
    row: int,
    size: int,
    state: int,
) -> Any:
    """A new block of the first `size` bytes of `row`, which keeps the rest."""
    front = new_block(
        table,
        spare,
        totals,
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


@njit(cache=True)
def release_to_pool(
    table: NDArray[np.int64],
    free: NDArray[np.int64],
    num_free: NDArray[np.int64],
    spare: NDArray[np.int64],
    totals: NDArray[np.int64],
    row: int,
) -> None:
    """Make a block free, as one with the free blocks that touch it."""
    before = table[row, PREVIOUS]
    if before >= 0 and table[before, STATE] == FREE:
        take_free(table, free, num_free, totals, before)
        table[row, ADDRESS] = table[before, ADDRESS]
        table[row, SIZE] += table[before, SIZE]
        drop_block(table, spare, totals, before)
    after = table[row, NEXT]
    if after >= 0 and table[after, STATE] == FREE:
        take_free(table, free, num_free, totals, after)
        table[row, SIZE] += table[after, SIZE]
        drop_block(table, spare, totals, after)
    add_free(table, free, num_free, totals, row)
