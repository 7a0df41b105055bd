"""A tape of op records: the forward of a stage as it is written, and the backward derived from it.

Each op says which tensors its backward reads besides gradients. A tensor with several readers gets
a gradient from each reader; each further gradient is accumulated where it is written. A sum passes
its gradient on to both inputs, without a new tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from .ops import OpRecord, StageRecord


@dataclass(frozen=True, slots=True)
class _Written:
    """An op of the forward, with the data for its backward."""

    record: OpRecord
    saved: tuple[str, ...]
    gradients: tuple[str, ...]
    backward_flops: int
    passes_on: bool = False


class StageTape:
    """Writes a stage op by op; `stage` returns it with its backward.

    Parameters
    ----------
    element_bytes
        Bytes per element of activations, and of weights as they are read.
    given
        Tensor from outside that the stage reads -> bytes: ``in``, its input.

    Attributes
    ----------
    constants : set of str
        Tensors that need no gradient.

    Examples
    --------
    >>> tape = StageTape(2, {"in": 8})
    >>> tape.product("up", "in", "m", rows=1, inner=4, outer=16)
    'm'
    >>> tape.product("down", "m", "out", rows=1, inner=16, outer=4)
    'out'
    >>> stage = tape.stage("mlp")
    >>> [(op.name, op.reads) for op in stage.backward]
    [("down'", ('d.out', 'm')), ("up'", ('d.m', 'in'))]
    >>> stage.num_parameters
    128
    """

    def __init__(self, element_bytes: int, given: Mapping[str, int]) -> None:
        self.element_bytes = element_bytes
        self.sizes = dict(given)
        self.constants: set[str] = set()
        self.num_parameters = 0
        self._written: list[_Written] = []

    def op(
        self,
        record: OpRecord,
        *,
        saved: tuple[str, ...] = (),
        gradients: tuple[str, ...] | None = None,
        backward_flops: int | None = None,
        parameters: int = 0,
    ) -> None:
        """Append an op.

        Parameters
        ----------
        saved
            Tensors that the backward of the op reads besides gradients.
        gradients
            Inputs that get a gradient; all by default.
        backward_flops
            Flops of the backward; by default those of the forward.
        parameters
            Number of parameters; 0 for an op that shares those of another op.
        """
        flops = record.flops if backward_flops is None else backward_flops
        self.sizes.update(record.writes)
        self.num_parameters += parameters
        given = record.reads if gradients is None else gradients
        self._written.append(_Written(record, saved, given, flops))

    def product(
        self,
        name: str,
        given: str,
        made: str,
        *,
        rows: int,
        inner: int,
        outer: int,
        bias: int = 0,
    ) -> str:
        """``made = given @ weight``; `bias` is the number of additional parameters."""
        weights = inner * outer + bias
        record = OpRecord(
            name,
            (given,),
            {made: rows * outer * self.element_bytes},
            2 * rows * inner * outer,
            weights * self.element_bytes,
        )
        known = given not in self.constants
        self.op(
            record,
            saved=(given,),
            gradients=(given,) if known else (),
            backward_flops=(2 if known else 1) * record.flops,
            parameters=weights,
        )
        return made

    def norm(self, name: str, given: str, made: str, *, parameters: int) -> str:
        """A norm, whose backward reads its input; statistics are neglected."""
        size = self.sizes[given]
        elements = size // self.element_bytes
        record = OpRecord(name, (given,), {made: size}, 8 * elements)
        self.op(record, saved=(given,), backward_flops=12 * elements, parameters=parameters)
        return made

    def pointwise(
        self,
        name: str,
        given: tuple[str, ...],
        made: str,
        size: int,
        *,
        saved: tuple[str, ...] = (),
        flops: int = 1,
    ) -> str:
        """An elementwise op with `flops` per element; its backward reads `saved`."""
        count = flops * (size // self.element_bytes)
        self.op(OpRecord(name, given, {made: size}, count), saved=saved)
        return made

    def add(self, name: str, one: str, other: str, made: str) -> str:
        """A sum of two tensors of one size."""
        size = self.sizes[one]
        record = OpRecord(name, (one, other), {made: size}, size // self.element_bytes)
        self.sizes[made] = size
        self._written.append(_Written(record, (), (one, other), 0, passes_on=True))
        return made

    def stage(self, name: str) -> StageRecord:
        """The stage written; ``out`` is its output, ``d.out`` the gradient of that."""
        forward = tuple(one.record for one in self._written)
        return StageRecord(name, forward, tuple(self._backward()), self.num_parameters)

    def _backward(self) -> list[OpRecord]:
        readers = Counter(tensor for one in self._written for tensor in one.gradients)
        given: Counter[str] = Counter()
        gradient = {"out": "d.out"}
        found: list[OpRecord] = []

        def next_name(tensor: str) -> str:
            given[tensor] += 1
            last = given[tensor] == readers[tensor]
            return f"d.{tensor}" if last else f"d.{tensor}#{given[tensor]}"

        for one in reversed(self._written):
            record = one.record
            known = tuple(gradient[t] for t in record.writes if t in gradient)
            if not known:
                continue
            if one.passes_on:
                for tensor in one.gradients:
                    name, before = next_name(tensor), gradient.get(tensor)
                    gradient[tensor] = known[0]
                    if before is not None or (tensor == "in" and name == "d.in"):
                        reads = known if before is None else (before, *known)
                        size = self.sizes[tensor]
                        flops = size // self.element_bytes
                        found.append(OpRecord(f"{name} sum", reads, {name: size}, flops))
                        gradient[tensor] = name
                continue
            writes, before_them = {}, []
            for tensor in one.gradients:
                if tensor in gradient:
                    before_them.append(gradient[tensor])
                gradient[tensor] = next_name(tensor)
                writes[gradient[tensor]] = self.sizes[tensor]
            reads = tuple(dict.fromkeys((*known, *one.saved, *before_them)))
            found.append(
                OpRecord(
                    f"{record.name}'", reads, writes, one.backward_flops, record.parameter_bytes
                )
            )
        return found
