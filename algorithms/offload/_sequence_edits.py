"""Edits of a sequence of runs and copies, of which the moves of the search consist.

Every edit writes a new sequence into a buffer and returns its length, or -1 where the edit does not
apply. Positions come from a `Trace` that `evaluate` has filled for the sequence edited.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from schedsim.kernels.compiled import kernel
from schedsim.kernels.record import Flags, Ints, Reals, Record

from ._timeline import LinkedGraph, Trace, evaluate

# Free places that the buffer must have, because an edit adds a few tokens.
SPARE = 64


@dataclass(frozen=True, eq=False)
class Scratch(Record):
    """Room for edits of a sequence, beside the trace.

    Attributes
    ----------
    current, proposed, other : (capacity,)
        Sequences of tokens.
    before, after : (instances,)
        The uses of each instance around a position.
    needed, on_host : (num_tensors,)
    seen : (num_ops,)
    noise : (1,)
        How much chance influences which tensor is copied.
    """

    current: Ints
    proposed: Ints
    other: Ints
    before: Ints
    after: Ints
    needed: Flags
    on_host: Flags
    seen: Flags
    noise: Reals


def make_scratch(linked: LinkedGraph, trace: Trace) -> Scratch:
    """Room for sequences as long as `trace` takes."""
    capacity, instances = trace.start_s.size, trace.first.size
    return Scratch(
        current=np.zeros(capacity, np.int64),
        proposed=np.zeros(capacity, np.int64),
        other=np.zeros(capacity, np.int64),
        before=np.zeros(instances, np.int64),
        after=np.zeros(instances, np.int64),
        needed=np.zeros(linked.size.size, np.bool_),
        on_host=np.zeros(linked.size.size, np.bool_),
        seen=np.zeros(linked.op_s.size, np.bool_),
        noise=np.zeros(1, np.float64),
    )


@kernel
def tidy(linked: LinkedGraph, tokens: Ints, num: int, scratch: Scratch) -> int:
    """Drop, in place, what nothing needs: repeats and copies of which nothing is read.

    A tensor is copied to the host only once; its copy there stays valid. O(tokens + reads).
    """
    needed, on_host, seen = scratch.needed, scratch.on_host, scratch.seen
    num_ops, num_tensors = linked.op_s.size, linked.size.size
    for t in range(num_tensors):
        needed[t], on_host[t] = linked.result[t], False
    for i in range(num_ops):
        seen[i] = False
    for k in range(num):  # the sign marks first runs and first copies
        token = tokens[k]
        if token < num_ops:
            if not seen[token]:
                seen[token] = True
                tokens[k] = -1 - token
        elif token < num_ops + num_tensors:
            t = token - num_ops
            if not on_host[t]:
                on_host[t] = True
                tokens[k] = -1 - token
    for t in range(num_tensors):
        on_host[t] = False  # from here on it means: the host's copy is needed
    kept = num
    for k in range(num - 1, -1, -1):
        token = tokens[k]
        first = token < 0
        token = -1 - token if first else token
        if token < num_ops:
            keep = first
            for w in range(linked.write_start[token], linked.write_start[token + 1]):
                keep |= needed[linked.writes[w]]
                needed[linked.writes[w]] = False
            if keep:
                for r in range(linked.read_start[token], linked.read_start[token + 1]):
                    needed[linked.reads[r]] = True
        elif token < num_ops + num_tensors:
            t = token - num_ops
            keep = first and on_host[t]
            if keep:
                on_host[t] = False
                needed[t] = True
        else:
            t = token - num_ops - num_tensors
            keep = needed[t]
            if keep:
                needed[t] = False
                on_host[t] = True
        if keep:
            kept -= 1
            tokens[kept] = token
    for k in range(kept, num):
        tokens[k - kept] = tokens[k]
    return num - kept


@kernel
def gap_before(trace: Trace, instance: int, at: int) -> int:
    """Position of the last use (or writing) of `instance` before `at`; -1 for a graph input."""
    for k in range(at - 1, trace.first[instance], -1):
        for r in range(trace.reads_at[k], trace.reads_at[k + 1]):
            if trace.used[r] == instance:
                return k
    return int(trace.first[instance])


@kernel
def place_back(linked: LinkedGraph, trace: Trace, tokens: Ints, use: int, read: int, t: int) -> int:
    """Position of the copy back that is in time for `read`: as late as the link is free for it."""
    num_ops, num_tensors = linked.op_s.size, linked.size.size
    lasts = linked.back_s[t]
    begin = trace.start_s[read] - lasts
    for k in range(read - 1, use, -1):
        if tokens[k] >= num_ops + num_tensors and trace.end_s[k] > begin:
            begin = min(begin, trace.start_s[k] - lasts)
    for k in range(read - 1, use, -1):
        if tokens[k] < num_ops and trace.start_s[k] <= begin:
            return k + 1
    return use + 1


@kernel
def add_copy(
    linked: LinkedGraph, tokens: Ints, num: int, t: int, use: int, back: int, into: Ints
) -> int:
    """Offload tensor `t` behind `use`, and copy it back at position `back`; see `place_back`."""
    num_ops, num_tensors = linked.op_s.size, linked.size.size
    if num + 2 > into.size:
        return -1
    is_out = False
    for k in range(use + 1):
        if tokens[k] == num_ops + t:
            is_out = True
            break
    made = 0
    for k in range(num + 1):
        if k == use + 1 and not is_out:
            into[made] = num_ops + t
            made += 1
        if k == back:
            into[made] = num_ops + num_tensors + t
            made += 1
        if k < num:
            into[made] = tokens[k]
            made += 1
    return made


@kernel
def choose_gap(
    linked: LinkedGraph,
    trace: Trace,
    num: int,
    at: int,
    excess: int,
    taste: float,
    scratch: Scratch,
) -> int:
    """The instance that is best offloaded at position `at`; -1 for none. O(tokens + reads).

    The best instance has the longest time unused per time of copying; `taste` says how much it
    counts that one copy covers the excess. ``scratch.before`` and ``scratch.after`` get the uses
    around `at`, by instance.
    """
    before, after, noise = scratch.before, scratch.after, scratch.noise
    made = trace.made_by[num]
    for i in range(made):
        before[i], after[i] = -2, -2
    for i in range(trace.made_by[0]):
        before[i] = -1
    for k in range(at):
        for i in range(trace.made_by[k], trace.made_by[k + 1]):
            before[i] = k
        for r in range(trace.reads_at[k], trace.reads_at[k + 1]):
            before[trace.used[r]] = k
    for k in range(num - 1, at, -1):
        for r in range(trace.reads_at[k], trace.reads_at[k + 1]):
            after[trace.used[r]] = k
    for r in range(trace.reads_at[at], trace.reads_at[at + 1]):
        before[trace.used[r]] = -2
    best, best_score = -1, 0.0
    for i in range(trace.made_by[at]):
        if before[i] < -1 or after[i] < 0 or trace.is_host[i]:
            continue
        t = trace.tensor[i]
        if linked.size[t] == 0:
            continue
        begin = trace.end_s[before[i]] if before[i] >= 0 else 0.0
        window = trace.start_s[after[i]] - begin
        copies = linked.out_s[t] + linked.back_s[t]
        score = (window + 1e-3 * copies) / (copies + 1e-300)
        score *= min(1.0, linked.size[t] / max(1, excess)) ** taste
        score *= 1.0 + noise[0] * np.random.random()
        if score > best_score:
            best, best_score = i, score
    return best


@kernel
def repair(
    linked: LinkedGraph,
    trace: Trace,
    tokens: Ints,
    num: int,
    scratch: Scratch,
    taste: float,
    most_steps: int,
) -> Any:
    """Offload tensors until the sequence fits; the caller finds the result in `tokens`.

    Returns (num, makespan in s, bytes over budget) of the sequence in `tokens`.
    """
    other = scratch.other
    makespan_s, excess, at = evaluate(linked, tokens, num, trace)
    for _ in range(most_steps):
        if makespan_s < 0 or excess <= 0 or num + SPARE > tokens.size:
            break
        i = choose_gap(linked, trace, num, at, excess, taste, scratch)
        if i < 0:
            break
        t, use, read = trace.tensor[i], scratch.before[i], scratch.after[i]
        # Not before the position that lacks memory: an earlier copy back would take room there.
        back = max(place_back(linked, trace, tokens, use, read, t), at + 1)
        made = add_copy(linked, tokens, num, t, use, back, other)
        if made < 0:
            break
        for k in range(made):
            tokens[k] = other[k]
        num = made
        makespan_s, excess, at = evaluate(linked, tokens, num, trace)
    return num, makespan_s, excess
