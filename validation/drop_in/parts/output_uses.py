"""What a loop does with the outputs of a part: which it drops, and for which no gradient comes.

A loop that takes `model(x, labels=x).loss` drops the logits before the backward, and no gradient
comes for them. So they are not there when the backward runs, and the plan may use their bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from schedsim import Graph

from ...capture.program import Program
from ...capture.to_graph import tensor_names
from ...measure.storage import storages
from ...torch_private.storage_refs import (
    StorageWeakRef,
    is_gone,
    share_of,
    storage_weakly,
    weakly,
)

_EARLIER = "results of the step before"


class OutputUse(NamedTuple):
    """What a loop does with the outputs of a part.

    Attributes
    ----------
    dropped
        Numbers of the held outputs that the loop has dropped when the backward begins.
    lacking
        Numbers of the given gradients that do not come.
    kept
        Numbers of those that the loop holds to the end of the backward, as in
        ``features.backward(gradient)``.
    """

    dropped: frozenset[int] = frozenset()
    lacking: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()

    def common(self, other: OutputUse) -> OutputUse:
        """What holds in both uses."""
        return OutputUse(
            self.dropped & other.dropped, self.lacking & other.lacking, self.kept | other.kept
        )

    def covers(self, other: OutputUse) -> bool:
        """Whether a plan for `other` is one for this use, too.

        Examples
        --------
        >>> OutputUse(frozenset({0}), frozenset()).covers(OutputUse())
        True
        >>> OutputUse().covers(OutputUse(frozenset({0}), frozenset()))
        False
        """
        fewer = other.dropped <= self.dropped and other.lacking <= self.lacking
        return fewer and self.kept <= other.kept


class Result(NamedTuple):
    """An output of a call, which is not held.

    Attributes
    ----------
    storage, place, size_bytes
        Its storage, the address of that, and its bytes.
    """

    storage: StorageWeakRef
    place: int
    size_bytes: int

    @property
    def is_gone(self) -> bool:
        """Whether nobody holds its storage any more."""
        return is_gone(self.storage)


def results_of(tensors: Iterable[torch.Tensor]) -> tuple[Result, ...]:
    """The results of a call, watched from now on."""
    found = []
    for tensor in tensors:
        storage = share_of(tensor).untyped_storage()
        found.append(Result(weakly(tensor), storage.data_ptr(), storage.nbytes()))
    return tuple(found)


def given_watched(gradients: Sequence[torch.Tensor | None]) -> tuple[tuple[int, Result], ...]:
    """The `gradients` that have memory of their own, with their numbers, watched from now on."""
    come = [(i, it) for i, it in enumerate(gradients) if it is not None and it.numel() > 1]
    found = zip(come, results_of(it for _, it in come), strict=True)
    return tuple((i, result) for (i, it), result in found if result.size_bytes >= it.nbytes)


def watched(tensors: Any) -> tuple[Result, ...]:
    """The storages under all tensors in the tree `tensors`, watched from now on."""
    return tuple(Result(storage_weakly(it), it.data_ptr(), it.nbytes()) for it in storages(tensors))


def by_place(results: Iterable[Result]) -> dict[int, int]:
    """Address -> bytes of the storages of `results`, of which two may share one."""
    return {r.place: r.size_bytes for r in results}


def bytes_of(results: Iterable[Result]) -> int:
    """Bytes of `results`; storages that two share count once."""
    return sum(by_place(results).values())


def alive_bytes(results: Iterable[Result]) -> int:
    """Bytes of those of `results` that are there."""
    return bytes_of(it for it in results if not it.is_gone)


def gone_among(results: Sequence[Result]) -> frozenset[int]:
    """Numbers of those of `results` that are gone."""
    return frozenset(i for i, result in enumerate(results) if result.is_gone)


class PartOutputs:
    """The outputs of a part as tensors of its graph.

    Parameters
    ----------
    program
        The program of the part.
    seed_name
        Name of the op that stands for the code between its halves.
    """

    def __init__(self, program: Program, seed_name: str) -> None:
        self._program, self._seed_name = program, seed_name
        self._names = tensor_names(program)
        values = program.values
        self._held = [self._names[values[v].storage] for v in program.held]
        self._given = [self._names[values[v].storage] for v in program.tangents]
        others = [*program.inputs.values(), *program.gradients.values()]
        others += program.input_gradients.values()
        self._kept_anyway = {self._names.get(values[v].storage) for v in others}
        calls = [c for i, c in enumerate(program.calls) if i != program.seed and not c.is_view]
        self._read_inside = {self._names.get(s) for call in calls for s in program.base_reads(call)}

    @property
    def root_bytes(self) -> int:
        """Bytes of the gradients of single numbers, such as a loss: its caller holds the one."""
        values, storages = self._program.values, self._program.storages
        single = [v for v in self._program.tangents if self._is_single(v)]
        return sum(int(storages[values[v].storage].size_bytes) for v in single)

    def unread(self) -> frozenset[int]:
        """Numbers of the held outputs that no op of the part reads: no schedule keeps them."""
        return frozenset(i for i, name in enumerate(self._held) if name not in self._read_inside)

    def guess(self) -> OutputUse:
        """The use that takes least: all outputs but single numbers, as losses, are dropped.

        And gradients come for these alone; for each output, where none of them is a single number.
        """
        large, lacking = (
            frozenset(i for i, v in enumerate(values) if not self._is_single(v))
            for values in (self._program.held, self._program.tangents)
        )
        all_large = len(lacking) == len(self._program.tangents)
        return OutputUse(large, frozenset() if all_large else lacking)

    def _is_single(self, value: int) -> bool:
        return all(size == 1 for size in self._program.values[value].shape)

    def lacking_names(self, use: OutputUse) -> frozenset[str]:
        """Tensors of the graph for gradients that do not come by `use`."""
        come = {name for i, name in enumerate(self._given) if i not in use.lacking}
        return frozenset(self._given[i] for i in use.lacking) - come

    def as_used(self, graph: Graph, use: OutputUse, earlier_bytes: int = 0) -> Graph:
        """`graph` with the outputs that `use` drops gone after the code between the halves.

        Parameters
        ----------
        earlier_bytes
            Bytes of results of an earlier step that are there until that code has run.
        """
        stays = {name for i, name in enumerate(self._held) if i not in use.dropped}
        gone = {self._held[i] for i in use.dropped} - stays - self._kept_anyway
        lacking = self.lacking_names(use)
        come = dict.fromkeys(self._given[i] for i in sorted(use.kept))
        kept = [name for name in come if name not in lacking and name not in graph.results]
        if not (gone or lacking or kept or earlier_bytes):
            return graph
        at = graph.op_index(self._seed_name)
        seed = graph.ops[at]
        writes = {name: 0 if name in lacking else size for name, size in seed.writes.items()}
        reads, inputs = seed.reads, graph.inputs
        if earlier_bytes:
            reads, inputs = (*reads, _EARLIER), {**inputs, _EARLIER: earlier_bytes}
        ops = (*graph.ops[:at], replace(seed, reads=reads, writes=writes), *graph.ops[at + 1 :])
        results = (*(name for name in graph.results if name not in gone), *kept)
        return replace(graph, ops=ops, inputs=inputs, results=results)
