"""Schedules read off cuts: what they evict is recomputed where it is needed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph
from schedsim.simulation.simulator import Simulation

from ._cut_table import Bools, Cut


def lazy_runs(graph: Graph, cuts: list[Cut], alive: list[Bools]) -> list[int] | None:
    """Every first run in the graph's order, with what the cuts evict recomputed where needed.

    Parameters
    ----------
    alive
        For each cut, the tensors that stay alive across it, ``(num_tensors,)``.

    Returns
    -------
    list of int or None
        ``None`` where a graph input or the output of a ``once`` op would have to be recomputed.
    """
    arrays = graph.arrays
    reads = _lists(arrays.read_start, arrays.read_tensor)
    writes = _lists(arrays.write_start, arrays.write_tensor)
    producer = arrays.tensor_producer.tolist()
    lasting = arrays.tensor_producer < 0
    lasting |= arrays.op_once[arrays.tensor_producer]
    kept_at = {cut.op: kept | cut.given | lasting for cut, kept in zip(cuts, alive, strict=True)}
    readers = np.repeat(np.arange(graph.num_ops), np.diff(arrays.read_start))
    ahead = {}
    for cut, kept in zip(cuts, alive, strict=True):
        read_later = arrays.tensor_result.copy()
        read_later[arrays.read_tensor[readers > cut.op]] = True
        earlier = (arrays.tensor_producer >= 0) & (arrays.tensor_producer < cut.op)
        ahead[cut.op] = kept & ~cut.given & read_later & earlier
    there = arrays.tensor_producer < 0
    runs: list[int] = []

    def run(op: int) -> None:
        """Append `op` to the runs, behind all runs that its inputs need, without recursion."""
        stack = [(op, False)]
        while stack:
            item, ready = stack.pop()
            if ready:
                runs.append(item)
                there[writes[item]] = True
                continue
            stack.append((item, True))
            missing = {producer[t] for t in reads[item] if not there[t]}
            stack += [(source, False) for source in sorted(missing, reverse=True)]

    for op in range(graph.num_ops):
        if op in kept_at:
            # Tensors recomputed ahead of a cut: behind the cut, their own inputs may be gone.
            for tensor in np.flatnonzero(ahead[op] & ~there).tolist():
                if not there[tensor]:
                    run(producer[tensor])
        run(op)
        if op in kept_at:
            there &= kept_at[op]
    for tensor in np.flatnonzero(arrays.tensor_result & ~there).tolist():
        if not there[tensor]:
            run(producer[tensor])
    return runs if _is_legal(arrays.op_once, runs) else None


def crowded_at(
    runs: list[int], simulation: Simulation, budget_bytes: int
) -> tuple[int, tuple[int, ...]]:
    """The first run at or before which `runs` are most over budget, and the repeats there that are.

    A repeated run belongs to the next first run behind it.
    """
    sequence = np.array(runs)
    is_first = np.zeros(sequence.size, dtype=np.bool_)
    is_first[np.unique(sequence, return_index=True)[1]] = True
    places = np.flatnonzero(is_first)
    stage = int(np.searchsorted(places, simulation.peak_run))
    if stage == places.size:
        return int(sequence[places[-1]]), ()
    over = np.flatnonzero(simulation.memory_bytes > budget_bytes)
    low = places[stage - 1] if stage else -1
    repeats = over[(over > low) & (over < places[stage])]
    return int(sequence[places[stage]]), tuple(sorted(set(sequence[repeats].tolist())))


def _is_legal(op_once: NDArray[np.bool_], runs: list[int]) -> bool:
    counts = np.bincount(runs, minlength=op_once.size)
    return bool(np.all(counts[op_once] == 1))


def _lists(start: NDArray[np.int64], items: NDArray[np.int64]) -> list[list[int]]:
    return [part.tolist() for part in np.split(items, start[1:-1])]
