"""The requests of a step in compiled code, against a few lines of Python, on random steps."""

from __future__ import annotations

import numpy as np
import pytest

from schedsim.allocators._step_requests import StepRuns, play_step
from schedsim.dataflow.record_tables import NONE, RecordTables
from schedsim.dataflow.recorded_step import RecordedStep


def in_python(tables, runs, end_row):
    """What `play_step` is to return, by dictionaries."""
    live, items, events, sizes, labels = {}, [], [], [], []

    def release(block, event):
        if block in live:
            items.append(~live.pop(block))
            events.append(event)

    def held(tensor):
        return tables.held[tables.held_start[tensor] : tables.held_start[tensor + 1]].tolist()

    def play(row, label, event, taken):
        for block in tables.entries[tables.start[row] : tables.start[row + 1]].tolist():
            if block < 0:
                release(~block, event)
                continue
            holder = int(tables.holder[block])
            source = taken.get(holder, NONE) if holder != NONE else NONE
            there = [b for b in held(source) if b in live] if source != NONE else []
            if there:
                item = live.pop(there[0])
                live.pop(block, None)  # it stands last then
                live[block] = item
                continue
            release(block, event)
            live[block] = len(sizes)
            sizes.append(int(tables.block_bytes[block]))
            labels.append(label if holder == NONE else holder)
            items.append(live[block])
            events.append(event)

    num = runs.rows.size
    for k in range(num):
        pairs = range(runs.taken_start[k], runs.taken_start[k + 1])
        taken = {int(runs.outs[i]): int(runs.sources[i]) for i in pairs}
        play(runs.rows[k], len(tables.tensors) + k, 2 * k, taken)
        for tensor in runs.dying[runs.dying_start[k] : runs.dying_start[k + 1]]:
            for block in held(tensor):
                release(block, 2 * k + 1)
    of_runs = [block for block in live if not tables.kept[block]]
    play(end_row, len(tables.tensors) + num, 2 * num - 1, {})
    for block in of_runs:
        release(block, 2 * num - 1)
    return items, events, sizes, labels


@pytest.mark.parametrize("seed", range(40))
def test_random_steps(seed):
    """Records of blocks that die in time, late, or never; tensors that take over others."""
    rng = np.random.default_rng(seed)
    num_ops, num_blocks = int(rng.integers(2, 8)), int(rng.integers(4, 20))
    names = [f"t{k}" for k in range(int(rng.integers(2, 6)))]
    holders = tuple(str(rng.choice(["", *names])) for _ in range(num_blocks))
    sizes = tuple(int(n) for n in rng.integers(1, 2000, num_blocks))
    records = {}
    for op in range(num_ops):
        asked = rng.choice(num_blocks, int(rng.integers(0, num_blocks)), replace=False).tolist()
        freed = [~b for b in asked if rng.random() < 0.4]
        records[f"op{op}"] = (*asked, *freed)
    step = RecordedStep((), sizes, holders, records, later_end=tuple(rng.permutation(2).tolist()))
    tables = RecordTables.of(step)
    number = list(tables.tensors.values())
    num = int(rng.integers(3, 15))
    rows = [tables.rows[f"op{rng.integers(num_ops)}"] for _ in range(num)]
    dying = [[t for t in number if rng.random() < 0.3] for _ in range(num)]
    taken = [
        [(a, b) for a in number for b in number if a != b and rng.random() < 0.1][:1]
        for _ in range(num)
    ]

    def flat(found):
        return np.array([one for row in found for one in row], dtype=np.int64)

    def starts(found):
        return np.cumsum([0, *map(len, found)], dtype=np.int64)

    runs = StepRuns(
        np.array(rows, dtype=np.int64),
        flat(dying),
        starts(dying),
        flat([[out for out, _ in row] for row in taken]),
        flat([[source for _, source in row] for row in taken]),
        starts(taken),
    )
    found = play_step(tables, runs, tables.ends[1])
    for mine, its in zip(in_python(tables, runs, tables.ends[1]), found, strict=True):
        assert mine == its.tolist()
