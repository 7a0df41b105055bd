"""Growing segments, in compiled code: pages are mapped into address space, and unmapped."""

from __future__ import annotations

from typing import Any

from ..kernels.compiled import kernel
from ._blocks import (
    ADDRESS,
    FREE,
    GROWING_SPACE,
    IN_USE,
    NEXT,
    NONE,
    NUM_SEGMENTS,
    PAGE,
    PREVIOUS,
    RESERVED,
    SIZE,
    STATE,
    UNMAPPED,
    BlockTable,
    add_free,
    drop_block,
    new_block,
    release_to_pool,
    split_off,
    take_free,
    whole_pages,
)

SMALL_PAGE, LARGE_PAGE = 2 << 20, 20 << 20


@kernel
def map_pages(
    blocks: BlockTable,
    row: int,
    size: int,
    capacity: int,
) -> Any:
    """Map memory for the first pages of an unmapped block, which begins and ends at a page.

    Returns the free block that has these pages, or -1 where the device has no room for them.
    """
    table, totals = blocks.table, blocks.totals
    page = table[row, PAGE]
    length = (size + page - 1) // page * page
    if totals[RESERVED] + length > capacity:
        return NONE
    totals[RESERVED] += length
    mapped = row
    if length < table[row, SIZE]:
        mapped = split_off(blocks, row, length, IN_USE)
    release_to_pool(blocks, mapped)
    return mapped


@kernel
def grow(
    blocks: BlockTable,
    size: int,
    pool: int,
    capacity: int,
) -> Any:
    """Grow a segment until it has a block of `size` bytes, at the lowest address with room.

    Returns that block, no longer free; -1 where the device has no room for the pages.
    """
    table, totals, heads = blocks.table, blocks.totals, blocks.heads
    if heads[pool] < 0:
        page = SMALL_PAGE if pool % 2 == 0 else LARGE_PAGE
        start = GROWING_SPACE * (pool + 1)
        length = GROWING_SPACE // page * page
        # A guard block, always in use, from which the linked list of blocks starts.
        guard = new_block(blocks, start, 0, IN_USE, pool, page)
        space = new_block(blocks, start, length, UNMAPPED, pool, page)
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
        row = map_pages(blocks, row, length, capacity)
        if row < 0:
            return NONE
    while table[row, SIZE] < size:
        unmapped = table[row, NEXT]
        length = min(table[unmapped, SIZE], size - table[row, SIZE])
        row = map_pages(blocks, unmapped, length, capacity)
        if row < 0:
            return NONE
    take_free(blocks, row)
    return row


@kernel
def unmap_pages(
    blocks: BlockTable,
    row: int,
) -> None:
    """Give back the whole pages in a free block of a growing segment."""
    table, totals = blocks.table, blocks.totals
    start, end = whole_pages(table, row)
    if end == start:
        return
    take_free(blocks, row)
    if start > table[row, ADDRESS]:
        front = split_off(blocks, row, start - table[row, ADDRESS], IN_USE)
        add_free(blocks, front)
    middle = row
    if end < table[row, ADDRESS] + table[row, SIZE]:
        middle = split_off(blocks, row, end - start, UNMAPPED)
        add_free(blocks, row)
    table[middle, STATE] = UNMAPPED
    totals[RESERVED] -= end - start
    before, after = table[middle, PREVIOUS], table[middle, NEXT]
    if before >= 0 and table[before, STATE] == UNMAPPED:
        table[middle, ADDRESS] = table[before, ADDRESS]
        table[middle, SIZE] += table[before, SIZE]
        drop_block(blocks, before)
    if after >= 0 and table[after, STATE] == UNMAPPED:
        table[middle, SIZE] += table[after, SIZE]
        drop_block(blocks, after)
