"""Groups that run one after another are joined, where that is quicker and needs no more bytes.

So are the two kernels of a convolution's backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..capture.program import Call, Program, Ref
from ..capture.to_graph import op_calls, result_storages
from .gradient_kernels import in_one_kernel
from .group import FusedGroup, Groups

QUICKER = 0.97
"""Share of the time of its parts that a joined group may take at most."""

MOST_PARTS = 4
"""Most groups in one: joining more costs compilation and gains little."""


@dataclass(frozen=True)
class JoinedRuns:
    """A schedule with some of its runs joined.

    Attributes
    ----------
    program
        The program, with an additional call at its end for each distinct joined group.
    runs
        Indices of the program's ops.
    parts
        Joined op -> the ops that it stands for.
    """

    program: Program
    runs: tuple[int, ...]
    parts: dict[int, tuple[int, ...]]


Measure = Callable[[Program, Call], tuple[float, int]]
"""Seconds and workspace bytes of a call."""


@dataclass(frozen=True)
class _Joinable:
    """Calls of groups, and the group that would do what they do."""

    calls: list[Call]
    group: FusedGroup
    inputs: list[int]


def join_runs(
    program: Program, runs: Sequence[int], limit_bytes: int, groups: Groups, measure: Measure
) -> JoinedRuns:
    """`runs` with neighbours joined, within `limit_bytes` of tensors that the step makes.

    A joined group loads and stores once what its parts load and store each; a tensor that only its
    parts read is never made. But its inputs and outputs are alive together, which must fit: this is
    counted for each run separately. O(runs + reads) for each of some walks, and a measurement for
    each distinct candidate. What one walk lacks is compiled beside each other before the next.
    """
    return _Joiner(program, runs, limit_bytes, groups, measure).join()


class _Joiner:
    def __init__(
        self,
        program: Program,
        runs: Sequence[int],
        limit_bytes: int,
        groups: Groups,
        measure: Measure,
    ) -> None:
        self.program = replace(program, calls=list(program.calls))
        self.runs, self.limit, self.groups, self.measure = runs, limit_bytes, groups, measure
        self.ops = op_calls(program)
        self.num_ops = len(self.ops)
        self.parts: dict[int, tuple[int, ...]] = {}
        self.known: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        self.compiled: set[str] = set()  # keys of groups
        self.refused: set[str] = set()
        self.lacking: dict[tuple[tuple[int, ...], tuple[int, ...]], _Joinable] = {}
        self.workspace: dict[int, int] = {}  # joined op -> workspace
        first: dict[int, int] = {}
        self.again = {k for k, run in enumerate(runs) if first.setdefault(run, k) != k}
        self._lifetimes()

    def _lifetimes(self) -> None:
        """Bytes alive before each run; for each run, the storages it makes and their last reads."""
        program, kept = self.program, set(result_storages(self.program))
        end = len(self.runs)
        current: dict[int, tuple[int, int]] = {}  # storage -> the run that made it, its last read
        self.made: list[dict[int, int]] = [{} for _ in self.runs]  # storage -> last read
        for s, storage in enumerate(program.storages):
            if storage.kind == "input":
                current[s] = (-1, end)
        for k, run in enumerate(self.runs):
            call = program.calls[self.ops[run]]
            for s in program.base_reads(call):
                if s in current:
                    first, last = current[s]
                    current[s] = (first, max(last, k))
                    if first >= 0:
                        self.made[first][s] = max(self.made[first][s], k)
            for s in {program.values[v].storage for v in call.outputs if v >= 0}:
                current[s] = (k, k)
                self.made[k][s] = k
        for s, (first, _) in current.items():
            if s in kept and first >= 0:
                self.made[first][s] = end
        change = [0] * (end + 2)
        for k, found in enumerate(self.made):
            for s, last in found.items():
                change[k + 1] += program.storages[s].size_bytes
                change[min(last, end) + 1] -= program.storages[s].size_bytes
        inputs = sum(t.size_bytes for t in program.storages if t.kind == "input")
        self.before, alive = [], inputs
        for k in range(end):
            alive += change[k]
            self.before.append(alive)

    def join(self) -> JoinedRuns:
        while True:
            found = self._walk()
            if not self.lacking:
                return JoinedRuns(self.program, found, self.parts)
            self._measure_lacking()

    def _walk(self) -> tuple[int, ...]:
        """The runs, joined as far as candidates are measured; notes those that are not."""
        found: list[int] = []
        k = 0
        while k < len(self.runs):
            end, joined = k + 1, -1
            while end < len(self.runs) and end - k < MOST_PARTS:
                op = self._joined(k, end + 1)
                if op is None:
                    end += 1  # as if joined: another start may prove to be needless
                    break
                if op < 0:
                    break
                joined, end = op, end + 1
            found.append(joined if joined >= 0 else self.runs[k])
            k = end
        return tuple(found)

    def _joined(self, begin: int, end: int) -> int | None:
        """The op that stands for runs `begin` to `end`; -1 where they are better apart.

        ``None`` where that is not measured yet.
        """
        program = self.program
        calls = [program.calls[self.ops[run]] for run in self.runs[begin:end]]
        whole = in_one_kernel(calls)
        if whole is None and not all(_is_compiled(call) and not call.tokens for call in calls):
            return -1
        written = [s for k in range(begin, end) for s in self.made[k]]
        if len(set(written)) < len(written):
            return -1
        own = set(written)
        is_again = not self.again.isdisjoint(range(begin, end))
        if whole is None and not self._share(own, calls, is_again):
            return -1
        later = set(own)
        for k, call in zip(range(begin, end), calls, strict=True):
            if later & set(program.base_reads(call)):
                return -1  # it reads what is there already, and what a later run makes again
            later -= self.made[k].keys()
        staying = {s for k in range(begin, end) for s, last in self.made[k].items() if last >= end}
        outputs = tuple(
            v
            for call in calls
            for v in call.outputs
            if v >= 0 and program.values[v].storage in staying
        )
        sizes = sum(program.storages[s].size_bytes for s in staying)
        if not outputs or self.before[begin] + sizes > self.limit:
            return -1
        key = (tuple(self.runs[begin:end]), outputs)
        if key not in self.known and whole is not None:
            same = sorted(outputs) == sorted(v for v in whole.outputs if v >= 0)
            self.known[key] = self._if_quicker(key[0], whole, calls, 1.0) if same else -1
        if key not in self.known:
            candidate = _Joinable(calls, *self.groups.join(program, calls, outputs))
            if candidate.group.key not in self.compiled:
                self.lacking[key] = candidate
                return None
            self.known[key] = self._measured(key[0], candidate, outputs)
        op = self.known[key]
        if op < 0 or self.before[begin] + sizes + self.workspace[op] > self.limit:
            return -1
        return op

    def _share(self, own: set[int], calls: list[Call], is_again: bool) -> bool:
        """Whether `calls`, which make `own`, share something that would be loaded only once.

        A tensor of theirs, or, where one of them runs again, the largest that one of them reads:
        what both compute of that, as the error function of a GELU and of its gradient, is then
        computed once. (Other runs seldom gain by that, and each candidate is a compilation.)
        """
        read = [self.program.base_reads(call) for call in calls]
        if any(own.intersection(storages) for storages in read):
            return True
        if not is_again:
            return False
        size = self.program.storages
        largest = {max(found, key=lambda s: size[s].size_bytes) for found in read if found}
        return any(sum(s in found for found in read) > 1 for s in largest)

    def _measure_lacking(self) -> None:
        """Compile the candidates of a walk beside each other, then measure one after another."""
        groups = {c.group.key: c.group for c in self.lacking.values()}
        self.refused |= self.groups.compile_joined(list(groups.values()))
        self.compiled |= groups.keys()
        for (runs, outputs), candidate in self.lacking.items():
            self.known[runs, outputs] = self._measured(runs, candidate, outputs)
        self.lacking.clear()

    def _measured(
        self, runs: tuple[int, ...], candidate: _Joinable, outputs: tuple[int, ...]
    ) -> int:
        """The op of the joined group, if it is quicker than its parts."""
        calls, group = candidate.calls, candidate.group
        if group.key in self.refused:
            return -1
        call = Call(
            "+".join(call.name for call in calls),
            group,
            tuple(Ref(v) for v in candidate.inputs),
            {},
            outputs=list(outputs),
            is_tuple=len(outputs) > 1,
            phase=calls[-1].phase,
            once=any(call.once for call in calls),
        )
        op = self._if_quicker(runs, call, calls, QUICKER)
        if op < 0:
            self.refused.add(group.key)
        return op

    def _if_quicker(
        self, runs: tuple[int, ...], call: Call, apart: Sequence[Call], share: float
    ) -> int:
        """The op of `call`, if it takes at most `share` of the time of what it stands for."""
        try:
            seconds, workspace = self.measure(self.program, call)
        except Exception:  # it does not run, as each part does
            return -1
        if seconds > share * sum(self.measure(self.program, part)[0] for part in apart):
            return -1
        self.program.calls.append(call)
        op = self.num_ops + len(self.parts)
        self.parts[op] = runs
        self.workspace[op] = workspace
        return op


def _is_compiled(call: Call) -> bool:
    return isinstance(call.target, FusedGroup) and not call.target.by_op
