"""Why the peak is where it is, and what one change to the schedule would buy."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checks.checked_arguments import checked
from ..dataflow.footprint import least_own_bytes
from ..dataflow.graph import Graph, Op
from ..dataflow.recomputation_rules import is_evicted
from ..simulation.schedule import Schedule
from ..simulation.simulator import Simulation, simulate
from .edits import ScheduleEditor
from .findings import Finding, find

if TYPE_CHECKING:
    from ..dataflow.chain import Chain

# Limit on simulated op runs for all single changes; it bounds the time without a clock.
MAX_SIMULATED_RUNS = 4_000_000
MAX_CHANGES = 400


@dataclass(frozen=True, slots=True)
class Alive:
    """A tensor instance alive during the peak.

    Attributes
    ----------
    name : str
    size_bytes : int
    category : str
        One of `schedsim.simulation.simulator.CATEGORIES`.
    written_run, written_op
        The run that wrote it; ``-1`` and ``"input"`` for a graph input.
    next_run, next_op
        Its first reader from the peak on; ``None`` where only the end of the step keeps it.
    """

    name: str
    size_bytes: int
    category: str
    written_run: int
    written_op: str
    next_run: int | None
    next_op: str | None


@dataclass(frozen=True, slots=True)
class Change:
    """One keep or recompute flip, simulated.

    Attributes
    ----------
    kind : str
        ``"recompute"``: evict `tensors` across the peak and recompute them; ``"keep"``: do not run
        `op_name` again.
    op_name : str
    tensors : tuple of str
        The tensors that are evicted, or kept.
    peak_bytes, makespan_s
        Peak and time of the changed schedule.
    peak_change_bytes, time_change_s
        Difference to the explained schedule; negative is less.
    num_runs_change : int
    """

    kind: str
    op_name: str
    tensors: tuple[str, ...]
    peak_bytes: int
    makespan_s: float
    peak_change_bytes: int
    time_change_s: float
    num_runs_change: int

    @property
    def bytes_per_s(self) -> float:
        """Peak bytes saved per extra second; infinite if the change costs no time."""
        spent = self.time_change_s
        return -self.peak_change_bytes / spent if spent > 0 else float("inf")


@dataclass(frozen=True)
class Explanation:
    """The explanation of a schedule's peak, and of what one change would buy.

    Attributes
    ----------
    simulation, store_all
        Simulations of the schedule, and of store-all.
    floor_bytes, floor_op
        The most that a single op needs, resident bytes included, and that op: no schedule has a
        lower peak.
    own_bytes
        Bytes that the op of the peak itself reads, writes and uses as workspace.
    alive
        Tensors alive at the peak, largest first.
    runs_near_peak
        Number of runs within one percent of the peak.
    recompute, keep
        Single changes. `recompute`: changes that lower the peak at the cost of time, best price
        first. `keep`: changes that save time at the cost of memory, least memory first.
    findings
        Statements about the schedule, the most important first.
    """

    simulation: Simulation
    store_all: Simulation
    floor_bytes: int
    floor_op: str
    own_bytes: int
    alive: tuple[Alive, ...]
    runs_near_peak: int
    recompute: tuple[Change, ...]
    keep: tuple[Change, ...]
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        """The explanation as a JSON document, ``schedsim.explanation/1``."""
        from dataclasses import asdict

        simulation = self.simulation
        return {
            "schema": "schedsim.explanation/1",
            "workload": simulation.workload_name,
            "peak_bytes": simulation.peak_bytes,
            "peak_run": simulation.peak_run,
            "peak_op": simulation.peak_op,
            "peak_by_category": simulation.by_category(),
            "own_bytes": self.own_bytes,
            "floor_bytes": self.floor_bytes,
            "floor_op": self.floor_op,
            "runs_near_peak": self.runs_near_peak,
            "num_runs": simulation.num_runs,
            "makespan_s": simulation.makespan_s,
            "store_all": {
                "peak_bytes": self.store_all.peak_bytes,
                "peak_op": self.store_all.peak_op,
                "makespan_s": self.store_all.makespan_s,
            },
            "alive": [asdict(tensor) for tensor in self.alive],
            "recompute": [asdict(change) for change in self.recompute],
            "keep": [asdict(change) for change in self.keep],
            "findings": [asdict(finding) for finding in self.findings],
        }


@checked
def explain(workload: Chain | Graph, schedule: Schedule | None = None) -> Explanation:
    """Why the peak of `schedule` is where it is, and what one change would buy.

    Parameters
    ----------
    workload
        A chain, or a graph on one stream.
    schedule
        Store-all where none is given.

    Returns
    -------
    Explanation
        Every change in it has been simulated; none is an estimate.

    Raises
    ------
    InvalidScheduleError
        The schedule is not legal on the workload.

    Notes
    -----
    O(runs) per change, for at most `MAX_CHANGES` changes and about `MAX_SIMULATED_RUNS` runs. The
    largest tensors alive at the peak and the longest repeats are tried.

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("four", 4, forward_s=[1] * 4, backward_s=[2] * 4,
    ...                           output_bytes=[4] * 4, saved_bytes=[20] * 4)
    >>> explanation = explain(chain)
    >>> explanation.simulation.peak_op, explanation.floor_bytes
    ('B3', 32)
    >>> best = explanation.recompute[0]
    >>> best.op_name, best.tensors, best.peak_change_bytes, best.time_change_s
    ('F0', ('r1', 'a1'), -20, 1.0)
    """
    graph = workload.graph
    everything = simulate(workload, Schedule.store_all(workload))
    simulation = everything if schedule is None else simulate(workload, schedule)
    own = least_own_bytes(graph).tolist()
    floor = max(range(graph.num_ops), key=own.__getitem__)
    peak = simulation.peak_bytes
    editor = ScheduleEditor(graph, simulation.schedule)
    alive = _alive(graph, simulation, editor)
    changes = max(1, min(MAX_CHANGES, MAX_SIMULATED_RUNS // simulation.num_runs))
    recompute = _recomputations(graph, simulation, editor, alive, changes)
    keep = _keeps(graph, simulation, editor, changes)
    return Explanation(
        simulation=simulation,
        store_all=everything,
        floor_bytes=graph.static_bytes + own[floor],
        floor_op=graph.op_names[floor],
        own_bytes=own[graph.op_index(simulation.peak_op)],
        alive=alive,
        runs_near_peak=int(np.count_nonzero(simulation.memory_bytes >= 0.99 * peak)),
        recompute=recompute,
        keep=keep,
        findings=find(graph, simulation, everything, own, recompute, keep),
    )


def _alive(graph: Graph, simulation: Simulation, editor: ScheduleEditor) -> tuple[Alive, ...]:
    runs = editor.runs
    found = []
    for live in simulation.live_tensors():
        made = graph.producer(live.name)
        following = editor.next_read(live.name, simulation.peak_run)
        found.append(
            Alive(
                live.name,
                live.size_bytes,
                live.category,
                -1 if made is None else live.first_run,
                "input" if made is None else graph.op_names[made],
                following,
                None if following is None else graph.op_names[int(runs[following])],
            )
        )
    return tuple(found)


def _recomputations(
    graph: Graph,
    simulation: Simulation,
    editor: ScheduleEditor,
    alive: tuple[Alive, ...],
    limit: int,
) -> tuple[Change, ...]:
    """Changes that evict across the peak: all outputs of a run together, and each one alone."""
    busy = _touched(graph.ops[graph.op_index(simulation.peak_op)])
    groups: dict[int, list[Alive]] = defaultdict(list)
    for tensor in alive:
        if tensor.written_run >= 0 and tensor.name not in busy and tensor.next_run is not None:
            groups[tensor.written_run].append(tensor)
    # All outputs of a run together, and each one alone.
    choices = [list(group) for group in groups.values()]
    choices += [[tensor] for group in groups.values() if len(group) > 1 for tensor in group]
    largest = sorted(choices, key=lambda group: -sum(t.size_bytes for t in group))
    found = []
    for group in largest[:limit]:
        names = tuple(tensor.name for tensor in group)
        changed = editor.recompute_instead(names, simulation.peak_run)
        if changed is not None and is_evicted(graph, changed):
            change = _change(graph, simulation, changed, "recompute", group[0].written_op, names)
            if change.peak_change_bytes < 0:
                found.append(change)
    return tuple(sorted(found, key=lambda c: (-c.bytes_per_s, c.peak_change_bytes)))


def _keeps(
    graph: Graph, simulation: Simulation, editor: ScheduleEditor, limit: int
) -> tuple[Change, ...]:
    """Changes that keep a tensor instead of repeating the run that writes it."""
    runs, seconds = editor.runs, simulation.run_s
    repeats = sorted(np.flatnonzero(~editor.is_first).tolist(), key=lambda k: -seconds[k])
    found = []
    for k in repeats[:limit]:
        op = graph.ops[int(runs[k])]
        changed = editor.keep_instead([k])
        if not is_evicted(graph, changed):
            continue  # the user asked for its recomputation
        change = _change(graph, simulation, changed, "keep", op.name, tuple(op.writes))
        found.append(change)
    return tuple(sorted(found, key=lambda c: (max(0, c.peak_change_bytes), c.time_change_s)))


def _touched(op: Op) -> set[str]:
    return {*op.reads, *op.writes}


def _change(
    graph: Graph,
    simulation: Simulation,
    schedule: Schedule,
    kind: str,
    op_name: str,
    tensors: tuple[str, ...],
) -> Change:
    other = simulate(graph, schedule)
    return Change(
        kind=kind,
        op_name=op_name,
        tensors=tensors,
        peak_bytes=other.peak_bytes,
        makespan_s=other.makespan_s,
        peak_change_bytes=other.peak_bytes - simulation.peak_bytes,
        time_change_s=other.makespan_s - simulation.makespan_s,
        num_runs_change=other.num_runs - simulation.num_runs,
    )
