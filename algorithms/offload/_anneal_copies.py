"""Annealing of a sequence of runs and copies: tensors are kept, recomputed or offloaded instead."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from schedsim.kernels.compiled import kernel
from schedsim.kernels.record import Ints, Reals, Record

from ._sequence_edits import SPARE, Scratch, add_copy, gap_before, place_back, repair, tidy
from ._timeline import LinkedGraph, Trace, evaluate

# Places in `best`; `WORK` counts tokens timed, which measures what moves cost.
MAKESPAN, LENGTH, MOVES, WORK = range(4)

WORK_PER_UNIT = 12_000_000.0
"""Tokens that one core times in about a second, a unit of effort."""


@dataclass(frozen=True, eq=False)
class Walk(Record):
    """One annealing: its sequence, the room that it works in, and the best sequence that it found.

    Attributes
    ----------
    trace, trial
        Room for the timelines of the sequence and of its neighbour sequence.
    best_tokens, best : (capacity,), (4,)
        The fastest sequence that fits; `best` has its time and length, and the moves and work so
        far.
    price : float
        Seconds that a byte over budget costs.
    """

    linked: LinkedGraph
    trace: Trace
    trial: Trace
    scratch: Scratch
    best_tokens: Ints
    best: Reals
    price: float


@kernel
def seed_numba(seed: int) -> None:
    """Seed the random generator of the kernels."""
    np.random.seed(seed)


@kernel
def _without(tokens: Ints, num: int, at: int, count: int, into: Ints) -> int:
    made = 0
    for k in range(num):
        if k < at or k >= at + count:
            into[made] = tokens[k]
            made += 1
    return made


@kernel
def _moved(tokens: Ints, num: int, at: int, to: int, into: Ints) -> int:
    """Write `tokens`, with the token at `at` moved to `to`, into `into`."""
    made = 0
    for k in range(num):
        if k == at:
            continue
        if made == to:
            into[made] = tokens[at]
            made += 1
        into[made] = tokens[k]
        made += 1
    if made < num:
        into[made] = tokens[at]
        made += 1
    return made


@kernel
def _pick(tokens: Ints, num: int, low: int, high: int) -> int:
    """A random position with a token in ``[low, high)``; -1 where a few tries find none."""
    if high <= low:
        return -1
    begin = np.random.randint(num)
    for k in range(num):
        at = begin + k
        at = at - num if at >= num else at
        if low <= tokens[at] < high:
            return at
    return -1


@kernel
def _random_gap(linked: LinkedGraph, trace: Trace, tokens: Ints, num: int) -> Any:
    """(instance, use, read) with a run between the two; instance -1 where a few tries find none."""
    num_ops = linked.op_s.size
    for _ in range(8):
        k = np.random.randint(num)
        if tokens[k] >= num_ops:
            continue
        low, high = trace.reads_at[k], trace.reads_at[k + 1]
        if high == low:
            continue
        i = trace.used[low + np.random.randint(high - low)]
        if linked.size[trace.tensor[i]] == 0:
            continue
        use = gap_before(trace, i, k)
        if use < k - 1:
            return i, use, k
    return -1, 0, 0


@kernel
def _add_runs(
    linked: LinkedGraph,
    trace: Trace,
    tokens: Ints,
    num: int,
    t: int,
    read: int,
    depth: int,
    into: Ints,
) -> int:
    """Run the producer of `t` again before position `read`, and its inputs' producers before."""
    runs = 0
    chosen = np.empty(depth, np.int64)
    while runs < depth:
        op = linked.producer[t]
        if op < 0 or linked.once[op]:
            break
        chosen[runs] = op
        runs += 1
        low, high = linked.read_start[op], linked.read_start[op + 1]
        if high == low:
            break
        t = linked.reads[low + np.random.randint(high - low)]
    if runs == 0 or num + runs > into.size:
        return -1
    made = 0
    for k in range(num):
        if k == read:
            for r in range(runs - 1, -1, -1):
                into[made] = chosen[r]
                made += 1
        into[made] = tokens[k]
        made += 1
    return made


@kernel
def _repeat_at(linked: LinkedGraph, tokens: Ints, num: int, scratch: Scratch) -> int:
    """A random position with a run of an op that ran before; -1 where a few tries find none."""
    num_ops = linked.op_s.size
    for i in range(num_ops):
        scratch.seen[i] = False
    total = 0
    for k in range(num):
        if tokens[k] < num_ops:
            if scratch.seen[tokens[k]]:
                total += 1
            scratch.seen[tokens[k]] = True
    if total == 0:
        return -1
    left = np.random.randint(total)
    for i in range(num_ops):
        scratch.seen[i] = False
    for k in range(num):
        if tokens[k] < num_ops:
            if scratch.seen[tokens[k]]:
                if left == 0:
                    return k
                left -= 1
            scratch.seen[tokens[k]] = True
    return -1


@kernel
def _keep_instead(
    linked: LinkedGraph, trial: Trace, tokens: Ints, num: int, scratch: Scratch, copies: bool
) -> int:
    """Drop some neighbouring repeated runs; with `copies`, offload what they made instead."""
    num_ops = linked.op_s.size
    at = _repeat_at(linked, tokens, num, scratch)
    if at < 0:
        return -1
    count = 1
    most = 1 if np.random.random() < 0.5 else 2 + np.random.randint(6)
    # `seen` says which ops ran before `at`.
    while count < most and at + count < num:
        token = tokens[at + count]
        if token >= num_ops or not scratch.seen[token]:
            break
        count += 1
    # Where each output was used last before, and is read next.
    made = _without(tokens, num, at, count, scratch.proposed)
    if not copies:
        return made
    evaluate(linked, scratch.proposed, made, trial)
    for k in range(at, at + count):
        op = tokens[k]
        for w in range(linked.write_start[op], linked.write_start[op + 1]):
            t = linked.writes[w]
            if linked.size[t] == 0:
                continue
            read, instance = -1, -1
            for j in range(at, made):
                for r in range(trial.reads_at[j], trial.reads_at[j + 1]):
                    if trial.tensor[trial.used[r]] == t and not trial.is_host[trial.used[r]]:
                        read, instance = j, trial.used[r]
                        break
                if read >= 0:
                    break
            if read < 0 or trial.first[instance] >= at:
                continue
            use = gap_before(trial, instance, read)
            if use >= read - 1:
                continue
            back = place_back(linked, trial, scratch.proposed, use, read, t)
            longer = add_copy(linked, scratch.proposed, made, t, use, back, scratch.other)
            if longer < 0:
                continue
            for j in range(longer):
                scratch.proposed[j] = scratch.other[j]
            made = longer
            evaluate(linked, scratch.proposed, made, trial)
    return made


@kernel
def _run_instead(linked: LinkedGraph, trace: Trace, tokens: Ints, num: int, into: Ints) -> int:
    """Drop a copy back, and recompute the tensor where it is read next."""
    num_ops, num_tensors = linked.op_s.size, linked.size.size
    at = _pick(tokens, num, num_ops + num_tensors, num_ops + 2 * num_tensors)
    if at < 0:
        return -1
    t = tokens[at] - num_ops - num_tensors
    if linked.producer[t] < 0 or linked.once[linked.producer[t]]:
        return -1
    read = -1
    for k in range(at + 1, num):
        for r in range(trace.reads_at[k], trace.reads_at[k + 1]):
            if trace.used[r] == trace.made_by[at]:
                read = k
                break
        if read >= 0:
            break
    if read < 0:
        return -1
    made = 0
    for k in range(num):
        if k == at:
            continue
        if k == read:
            into[made] = linked.producer[t]
            made += 1
        into[made] = tokens[k]
        made += 1
    return made


@kernel
def _propose(
    linked: LinkedGraph, trace: Trace, trial: Trace, tokens: Ints, num: int, scratch: Scratch
) -> int:
    """Write a neighbour sequence of `tokens` into `scratch.proposed`; its length, -1 for none."""
    num_ops, num_tensors = linked.op_s.size, linked.size.size
    into = scratch.proposed
    kind = np.random.random()
    if kind < 0.15:
        i, use, read = _random_gap(linked, trace, tokens, num)
        if i < 0:
            return -1
        t = trace.tensor[i]
        back = place_back(linked, trace, tokens, use, read, t)
        return add_copy(linked, tokens, num, t, use, back, into)
    if kind < 0.25:
        at = _pick(tokens, num, num_ops + num_tensors, num_ops + 2 * num_tensors)
        return -1 if at < 0 else _without(tokens, num, at, 1, into)
    if kind < 0.55:
        # Copies back and forth along the sequence; more often back than out.
        low = num_ops + (num_tensors if np.random.random() < 0.8 else 0)
        at = _pick(tokens, num, low, low + num_tensors)
        if at < 0:
            return -1
        reach = 1 + int(np.random.random() ** 3 * 30)
        to = at + (reach if np.random.random() < 0.5 else -reach)
        if to < 0 or to >= num:
            return -1
        return _moved(tokens, num, at, to, into)
    if kind < 0.65:
        return _keep_instead(linked, trial, tokens, num, scratch, False)
    if kind < 0.8:
        return _keep_instead(linked, trial, tokens, num, scratch, True)
    if kind < 0.88:
        return _run_instead(linked, trace, tokens, num, into)
    i, use, read = _random_gap(linked, trace, tokens, num)
    if i < 0:
        return -1
    depth = 1 if np.random.random() < 0.6 else 2 + np.random.randint(8)
    return _add_runs(linked, trace, tokens, num, trace.tensor[i], read, depth, into)


@kernel
def anneal(walk: Walk, num: int, heat_s: float, num_moves: int, most_work: float) -> int:
    """Anneal the `num` tokens in ``scratch.current``; the best that fits goes to `best_tokens`.

    Parameters
    ----------
    heat_s
        Temperature in seconds.
    num_moves, most_work
        The annealing ends after so many moves, or with the first move that takes ``best[WORK]``
        to `most_work`.

    Returns the length of the sequence that is in ``scratch.current`` in the end. A move takes
    O(tokens + reads) time, or up to eight times that where it repairs.
    """
    linked, trace, trial, scratch = walk.linked, walk.trace, walk.trial, walk.scratch
    best, best_tokens, price = walk.best, walk.best_tokens, walk.price
    tokens, proposed = scratch.current, scratch.proposed
    makespan_s, excess, _ = evaluate(linked, tokens, num, trace)
    cost = makespan_s + price * excess
    best[WORK] += num
    for _ in range(num_moves):
        if best[WORK] >= most_work:
            break
        best[MOVES] += 1
        best[WORK] += num
        made = _propose(linked, trace, trial, tokens, num, scratch)
        if made < 0 or made + SPARE > tokens.size:
            continue
        made = tidy(linked, proposed, made, scratch)
        makespan_s, excess, _ = evaluate(linked, proposed, made, trial)
        best[WORK] += made
        if makespan_s < 0:
            continue
        if excess > 0 and np.random.random() < 0.5:
            scratch.noise[0] = 3.0
            length = made
            made, makespan_s, excess = repair(
                linked, trial, proposed, made, scratch, np.random.random(), 8
            )
            best[WORK] += made * (made - length + 2)
        after = makespan_s + price * excess
        if after <= cost or np.random.random() < math.exp((cost - after) / heat_s):
            cost = after
            for k in range(made):
                tokens[k] = proposed[k]
            num = made
            trace, trial = trial, trace
            if excess <= 0 and makespan_s < best[MAKESPAN]:
                best[MAKESPAN], best[LENGTH] = makespan_s, made
                for k in range(made):
                    best_tokens[k] = tokens[k]
    return num
