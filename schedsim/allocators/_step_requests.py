"""The requests of one recorded step in compiled code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dataflow.record_tables import NONE, RecordTables
from ..kernels.compiled import kernel, run
from ..kernels.record import Ints, Record

# Entries of the counts.
NUM_EVENTS, NUM_ITEMS, NUM_LIVE = range(3)


@dataclass(frozen=True, eq=False)
class StepRuns(Record):
    """The runs of a step.

    Attributes
    ----------
    rows
        For each run, the row of its record.
    dying, dying_start
        The tensors without a later reader after each run.
    outs, sources, taken_start
        Of each run, the outputs that take over the storage of another tensor, and that tensor.
    """

    rows: Ints
    dying: Ints
    dying_start: Ints
    outs: Ints
    sources: Ints
    taken_start: Ints


@dataclass(frozen=True, eq=False)
class PlayedStep(Record):
    """What is written; see `play_step`.

    Attributes
    ----------
    live
        For each block, the item that it is now, or `NONE`.
    order
        For each block that is live, when it began to be.
    """

    items: Ints
    events: Ints
    sizes: Ints
    labels: Ints
    live: Ints
    order: Ints
    counts: Ints


@kernel
def release_block(played: PlayedStep, block: int, event: int) -> None:
    """Give a block back, if it is there."""
    item = played.live[block]
    if item == NONE:
        return
    counts = played.counts
    played.live[block] = NONE
    played.items[counts[NUM_EVENTS]] = ~item
    played.events[counts[NUM_EVENTS]] = event
    counts[NUM_EVENTS] += 1


@kernel
def live_block(tables: RecordTables, played: PlayedStep, tensor: int) -> Any:
    """The first block of a tensor that is there, or `NONE`."""
    if tensor == NONE:
        return NONE
    for i in range(tables.held_start[tensor], tables.held_start[tensor + 1]):
        if played.live[tables.held[i]] != NONE:
            return tables.held[i]
    return NONE


@kernel
def play_record(
    tables: RecordTables,
    runs: StepRuns,
    played: PlayedStep,
    row: int,
    number: int,
    label: int,
    event: int,
) -> None:
    """The requests of a record; `number` is its run, or `NONE` for none."""
    counts, live = played.counts, played.live
    low, high = 0, 0
    if number != NONE:
        low, high = runs.taken_start[number], runs.taken_start[number + 1]
    for i in range(tables.start[row], tables.start[row + 1]):
        block = tables.entries[i]
        if block < 0:
            release_block(played, ~block, event)
            continue
        holder, source = tables.holder[block], NONE
        for pair in range(low, high):
            if runs.outs[pair] == holder:
                source = live_block(tables, played, runs.sources[pair])
        if source != NONE:
            item = live[source]
            live[source] = NONE
            live[block] = item
        else:
            release_block(played, block, event)  # of a run before that nobody gave back
            item = counts[NUM_ITEMS]
            counts[NUM_ITEMS] += 1
            live[block] = item
            played.sizes[item] = tables.block_bytes[block]
            played.labels[item] = label if holder == NONE else holder
            played.items[counts[NUM_EVENTS]] = item
            played.events[counts[NUM_EVENTS]] = event
            counts[NUM_EVENTS] += 1
        played.order[block] = counts[NUM_LIVE]
        counts[NUM_LIVE] += 1


@kernel
def play_runs(tables: RecordTables, runs: StepRuns, played: PlayedStep, num_tensors: int) -> None:
    """The records of the runs, each with the ends of tensors after it."""
    for number in range(runs.rows.size):
        label, event = num_tensors + number, 2 * number
        play_record(tables, runs, played, runs.rows[number], number, label, event)
        for i in range(runs.dying_start[number], runs.dying_start[number + 1]):
            tensor = runs.dying[i]
            for k in range(tables.held_start[tensor], tables.held_start[tensor + 1]):
                release_block(played, tables.held[k], event + 1)


def play_step(tables: RecordTables, runs: StepRuns, end_row: int) -> tuple[Ints, Ints, Ints, Ints]:
    """The requests of a step: items, events, and size and label of each item.

    What follows the last op, the record `end_row`, comes after all runs. At the end everything but
    kept gradients is released. Labels are those of tensors, then one for each run, then that of the
    end.

    Notes
    -----
    O(n) for n requests.
    """
    lengths = np.diff(tables.start)
    most = int(lengths[runs.rows].sum() + lengths[end_row])
    num_blocks, num_tensors = tables.block_bytes.size, len(tables.tensors)
    played = PlayedStep(
        items=np.empty(2 * most, np.int64),
        events=np.empty(2 * most, np.int64),
        sizes=np.empty(most, np.int64),
        labels=np.empty(most, np.int64),
        live=np.full(num_blocks, NONE, np.int64),
        order=np.zeros(num_blocks, np.int64),
        counts=np.zeros(3, np.int64),
    )
    run(play_runs, most, tables, runs, played, num_tensors)
    num = runs.rows.size
    event = 2 * num - 1
    left = np.flatnonzero((played.live != NONE) & ~tables.kept)
    left = left[np.argsort(played.order[left], kind="stable")]
    run(play_record, most, tables, runs, played, end_row, NONE, num_tensors + num, event)
    ended = played.live[left]
    ended = ended[ended != NONE]
    num_events, num_items = int(played.counts[NUM_EVENTS]), int(played.counts[NUM_ITEMS])
    return (
        np.concatenate([played.items[:num_events], ~ended]),
        np.concatenate([played.events[:num_events], np.full(ended.size, event, np.int64)]),
        played.sizes[:num_items],
        played.labels[:num_items],
    )
