"""The bytes of a part of a step at other batch sizes, evaluated instead of measured again."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from schedsim import Graph

from ...capture.program import Program
from ...capture.to_graph import tensor_names
from ...capture.varying_sizes import numbers_of
from .joint_part import OpenSize

Binding = tuple[int, ...]
"""Numbers for the open sizes of a part, in the part's order; empty where it has none."""

Bytes = NDArray[np.int64]


class MeasuredSizes(NamedTuple):
    """Measurements of a part at some sizes.

    Attributes
    ----------
    graph
        The graph, with the times and workspaces of its ops at these sizes.
    touched_bytes : (num_ops,) int64
        Bytes read and written by each op, parameters excluded.
    extra_bytes : (num_tensors,) int64
        Bytes by which storages were larger than their shapes imply.
    """

    graph: Graph
    touched_bytes: Bytes
    extra_bytes: Bytes


class PartSizes:
    """Bytes of the tensors and workspaces of a part, by its open sizes.

    Parameters
    ----------
    program
        The program, whose sizes may be formulas.
    open_sizes
        Places of the open sizes among the arguments of a step.

    Notes
    -----
    A tensor's bytes follow from its formula. A workspace is known where it was measured: at sizes
    none of which is larger, the same workspace is charged; at other sizes it grows with the bytes
    that the op touches.
    """

    def __init__(self, program: Program, open_sizes: Mapping[str, OpenSize]) -> None:
        self.names = tuple(open_sizes)
        self.open_sizes = tuple(open_sizes.values())
        self.traced: Binding = tuple(size.traced for size in self.open_sizes)
        self._program = program
        named = {name: s for s, name in tensor_names(program).items()}
        self._bytes_by_name = {name: program.storages[s].size_bytes for name, s in named.items()}
        self._order: tuple[str, ...] = ()
        self._tensor_numbers: Any = None
        self._last: tuple[Binding, tuple[Bytes, Bytes]] | None = None
        self.measured: dict[Binding, MeasuredSizes] = {}

    def read(self, arguments: Sequence[Any]) -> Binding:
        """The open sizes of a step."""
        return tuple(
            int(arguments[at.position] if at.dim < 0 else arguments[at.position].shape[at.dim])
            for at in self.open_sizes
        )

    def named(self, binding: Binding) -> dict[str, int]:
        """Name of an open size -> number."""
        return dict(zip(self.names, binding, strict=True))

    def note(self, binding: Binding, graph: Graph) -> None:
        """Remember the part as measured at `binding`."""
        arrays = graph.arrays
        extra = np.maximum(0, arrays.tensor_bytes - self._by_formula(graph, binding))
        touched = _touched(graph, arrays.tensor_bytes)
        self._last = None
        self.measured[binding] = MeasuredSizes(graph, touched, extra)

    def _by_formula(self, graph: Graph, binding: Binding) -> Bytes:
        order = graph.arrays.tensor_names
        if self._tensor_numbers is None or order != self._order:
            self._order = order
            # An argument that is no storage stands for an op that has run, and has no bytes.
            sizes = [self._bytes_by_name.get(name, 0) for name in order]
            self._tensor_numbers = numbers_of(sizes, self.names)
        return np.array(self._tensor_numbers(binding), np.int64)

    def limit(self, binding: Binding, largest: Mapping[int, int]) -> Binding:
        """`binding`, made larger where the caller named a larger size for a dimension."""
        found = []
        for number, at in zip(binding, self.open_sizes, strict=True):
            dim = re.search(r"size\(\)\[(\d+)\]$", at.source)
            given = largest.get(int(dim[1])) if dim else None
            found.append(max(number, given or at.told or 0))
        return tuple(found)

    def grown(self, binding: Binding, share: float) -> Binding:
        """`binding` times `share`, as far as a size was said to go."""
        sizes = zip(binding, self.open_sizes, strict=True)
        return tuple(min(math.ceil(share * size), at.most or 2**62) for size, at in sizes)

    def in_words(self, *bindings: Binding) -> str:
        """The sources of the open sizes, once, with the numbers of each binding; empty for none."""
        if not self.open_sizes or not all(bindings):
            return ""
        if len(self.open_sizes) == 1:
            return f", at {self.open_sizes[0].source} = {', '.join(str(n) for (n,) in bindings)}"
        sources = _shared_source([at.source for at in self.open_sizes])
        return f", at {sources} = {', '.join(map(str, bindings))}"

    def at(self, binding: Binding) -> tuple[Bytes, Bytes]:
        """Bytes of tensors and of workspaces, in the order of the arrays of the graph."""
        if binding in self.measured:
            arrays = self.measured[binding].graph.arrays
            return arrays.tensor_bytes, arrays.op_workspace_bytes
        if self._last is None or self._last[0] != binding:
            self._last = (binding, self._evaluated(binding))
        return self._last[1]

    def _evaluated(self, binding: Binding) -> tuple[Bytes, Bytes]:
        first = next(iter(self.measured.values()))
        tensors = self._by_formula(first.graph, binding)
        tensors = tensors + np.max([one.extra_bytes for one in self.measured.values()], axis=0)
        touched = _touched(first.graph, tensors)
        smaller = [
            one.graph.arrays.op_workspace_bytes
            for known, one in self.measured.items()
            if all(mine <= its for mine, its in zip(binding, known, strict=True))
        ]
        if smaller:
            return tensors, np.min(smaller, axis=0)
        grown = []
        for one in self.measured.values():
            ratio = np.maximum(1.0, touched / np.maximum(1, one.touched_bytes))
            grown.append(np.ceil(one.graph.arrays.op_workspace_bytes * ratio).astype(np.int64))
        return tensors, np.max(grown, axis=0)


def _touched(graph: Graph, tensor_bytes: Bytes) -> Bytes:
    arrays = graph.arrays
    found = np.zeros(graph.num_ops, np.int64)
    for start, tensor in (
        (arrays.read_start, arrays.read_tensor),
        (arrays.write_start, arrays.write_tensor),
    ):
        total = np.concatenate([[0], np.cumsum(tensor_bytes[tensor])])
        found += total[start[1:]] - total[start[:-1]]
    return found


def longest(bindings: Sequence[Binding]) -> Binding:
    """The largest number at each place of some bindings of one part."""
    return tuple(max(numbers) for numbers in zip(*bindings, strict=True))


def _shared_source(sources: Sequence[str]) -> str:
    """Sources in one expression: those that differ in their last index alone, as one range.

    Examples
    --------
    >>> _shared_source(["L['n'][0]", "L['n'][1]", "L['n'][2]"])
    "L['n'][0..2]"
    >>> _shared_source(["L['x'].size()[1]", "L['y'].size()[0]"])
    "(L['x'].size()[1], L['y'].size()[0])"
    """
    first, at = sources[0].rpartition("[")[::2]
    rows = [f"{first}[{k}]" for k in range(len(sources))]
    if at == "0]" and list(sources) == rows:
        return f"{first}[0..{len(sources) - 1}]"
    return f"({', '.join(sources)})"
