"""Layers of a rank: their ops by micro-batch, what runs again, and what waits in host memory.

An offloaded layer keeps nothing on the device from its forward to its backward. What it keeps is
copied to the host when its forward is done, and stays on the device until the next such copy
begins, or the next backward of a layer ends: one copy at a time is on its way. The copy back begins
when the backward of the offloaded layer before it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..dataflow.graph import COMPUTE, Op
from ..dataflow.streams import D2H, H2D
from ..workloads.architecture import Architecture
from .degrees import Degrees
from .fabric import Fabric
from .float8_layer import gathers_float8, write_layer
from .kept_names import kept_names, split_host
from .layer_ops import LayerOps
from .layer_recompute import kept_tensors, offloaded_tensors, repeated_ops
from .rank_head import HeadWriter
from .stages import StageParts, layer_policies
from .tape import RankOp
from .training import Training

BACK = " back"
"""Ends the name of a tensor that was copied back, or made again from such tensors."""


class _NameParts(NamedTuple):
    """A tensor's name: what comes before its layer, whose number is `after` more, and at its end.

    `alone`: it is of no micro-batch.
    """

    first: str
    after: int
    last: str = ""
    alone: bool = False

    def of(self, number: int, micro: int) -> str:
        """The name in layer `number` and a micro-batch."""
        first, last = self.around(number)
        return first if last is None else f"{first}{micro}{last}"

    def around(self, number: int) -> tuple[str, str | None]:
        """What is before and after the micro-batch in layer `number`; ``None`` after no number."""
        if self.alone:
            return f"{self.first}{number + self.after}", None
        return f"{self.first}{number + self.after} ", self.last


@dataclass(frozen=True, slots=True)
class _OpForm:
    """An op of a layer, in every layer of its kind: reads and writes are places in `names`."""

    time_s: float
    stream: str
    names: tuple[_NameParts, ...]
    reads: tuple[int, ...]
    writes: tuple[tuple[int, int], ...]
    in_place: tuple[tuple[int, int], ...]


class LayerOpsWriter(HeadWriter):
    """Writes the ops of layers, and the copies of offloaded ones."""

    def __init__(
        self,
        model: Architecture,
        degrees: Degrees,
        training: Training,
        fabric: Fabric,
        stages: Sequence[StageParts],
        *,
        one_stream: bool,
    ) -> None:
        super().__init__(model, degrees, training, fabric, stages, one_stream=one_stream)
        self._layers: dict[bool, LayerOps] = {}
        self._again: dict[tuple[bool, str], tuple[list[RankOp], set[str]]] = {}
        self._policy: dict[int, str] = {}
        self._sent: tuple[str, tuple[str, ...]] | None = None
        self.layer_codes: list[tuple[int, int]] = []
        self._op_of: dict[str, RankOp] = {}
        self._forms: dict[tuple[object, ...], _OpForm] = {}
        self._shaped: dict[tuple[str, int, str], tuple[_OpForm, list[tuple[str, str | None]]]] = {}
        for stage in stages:
            policies = layer_policies(training, degrees, stage)
            self._policy |= dict(zip(stage.layers, policies, strict=True))

    @property
    def layer_ops(self) -> list[RankOp | None]:
        """The op of each run, in its layer; ``None`` for runs that are of no layer."""
        return [self._op_of.get(self.ops[op].name) for op in self.runs]

    def products(self) -> list[bool]:
        """Whether each run is a matrix product."""
        of_layers = self.layer_ops
        return [
            one.kind == "product" if one is not None else self.ops[op].name.startswith("logits")
            for op, one in zip(self.runs, of_layers, strict=True)
        ]

    def _layer(self, number: int) -> LayerOps:
        experts = self.model.has_experts(number)
        if experts not in self._layers:
            self._layers[experts] = write_layer(
                self.model,
                self.degrees,
                self.training,
                self.tokens,
                self.fabric,
                experts=experts,
            )
        return self._layers[experts]

    def _gathered_bytes(self, unit: str) -> int:
        """Weights of products are gathered in 8 bits where the products run so."""
        size = super()._gathered_bytes(unit)
        if unit.isdecimal() and gathers_float8(self.model, self.degrees, self.training):
            size -= sum(self._layer(int(unit)).weights.values()) // 2
        return size

    def _policy_of(self, number: int) -> tuple[list[RankOp], set[str]]:
        """(ops that run again, tensors that are kept though the backward does not read them)."""
        experts, policy = self.model.has_experts(number), self._policy[number]
        key = experts, policy
        if key not in self._again:
            layer, base = self._layer(number), split_host(policy)[0]
            kept = kept_tensors(layer, base, self.training)
            again = repeated_ops(layer, kept, self.training)
            read = {t for op in (*again, *layer.backward) for t in op.reads}
            # The list of an eager policy holds what it keeps, read or not.
            listed = policy == "selective" or kept_names(policy) is not None
            idle = listed and not self.training.is_graph
            self._again[key] = again, (kept - read if idle else set())
        return self._again[key]

    def _name(self, local: str, number: int, micro: int, *, back: bool = False) -> str:
        return self._name_parts(local, number, back=back).of(number, micro)

    def _name_parts(self, local: str, number: int, *, back: bool) -> _NameParts:
        """The name of a tensor of layer `number`, without that number and its micro-batch."""
        layer = self._layer(number)
        if local == layer.output:
            return _NameParts("A x ", 1)
        if local == "d.out":
            return _NameParts("D x ", 1)
        if local == layer.input_gradient:
            return _NameParts("D x ", 0)
        if local == "W":
            unit = str(number)
            return _NameParts("W ", 0, alone=self._weight(unit, 0) == self._weight(unit, 1))
        kind = {"d": "D", "g": "G"}.get(local.partition(".")[0], "A")
        if local == "gate":
            kind = "A"
        late = back and kind == "A" and not (local == "x" and self._received(number))
        return _NameParts(f"{kind} {local} ", 0, BACK if late else "")

    def _instance(self, op: RankOp, number: int, micro: int, phase: str) -> Op:
        """The op of a micro-batch; `phase` may be ``again``, for a copy of an op of the forward."""
        key = op.name, number, phase
        if key not in self._shaped:
            self._shaped[key] = self._in_layer(op, number, phase)
        form, around = self._shaped[key]
        names = [f"{one}{micro}{last}" if last is not None else one for one, last in around]
        full_name = f"{op.name} {number} {micro}{' again' if phase == 'again' else ''}"
        self._op_of[full_name] = op
        return Op.unchecked(
            full_name,
            "backward" if phase == "again" else phase,
            form.time_s,
            op.workspace_bytes,
            tuple([names[k] for k in form.reads]),
            {names[k]: size for k, size in form.writes},
            in_place={names[k]: names[j] for k, j in form.in_place} if form.in_place else {},
            stream=form.stream,
        )

    def _in_layer(
        self, op: RankOp, number: int, phase: str
    ) -> tuple[_OpForm, list[tuple[str, str | None]]]:
        """The form of an op, and its names in a layer, around the number of the micro-batch."""
        back = phase != "forward" and self._offloads(number)
        # All that a name depends on beside its numbers.
        key = op.name, phase, back, back and self._received(number), self.model.has_experts(number)
        if key not in self._forms:
            self._forms[key] = self._form(op, number, phase, back=back)
        form = self._forms[key]
        return form, [one.around(number) for one in form.names]

    def _form(self, op: RankOp, number: int, phase: str, *, back: bool) -> _OpForm:
        """What the instances of an op in all layers of a kind have in common."""
        names: dict[_NameParts, int] = {}

        def place(local: str) -> int:
            parts = self._name_parts(local, number, back=back)
            if phase == "again" and local == self._layer(number).output:
                parts = _NameParts(f"A {local} ", 0, BACK)
            return names.setdefault(parts, len(names))

        reads = [place(one) for one in op.reads if one != "W" or self._gathers]
        written = {place(one): size for one, size in op.writes.items()}
        in_place = tuple((place(one), place(other)) for one, other in op.in_place.items())
        found = tuple(names)
        if self.training.state == "megatron":
            written = {
                k: size for k, size in written.items() if not found[k].first.startswith("G ")
            }
        message = op.stream != "compute"
        return _OpForm(
            op.link_s if message else op.compute_s(self.fabric) + op.link_s,
            f"link:{op.stream}" if message and not self.one_stream else COMPUTE,
            found,
            tuple(dict.fromkeys(reads)),
            tuple(written.items()),
            in_place,
        )

    # Copies between the device and its host.

    def _offloads(self, number: int) -> bool:
        return split_host(self._policy[number])[1] != 0

    def _received(self, number: int) -> bool:
        """Whether the input of a layer is the buffer of a message, which is resident."""
        return any(
            number == stage.layers.start and not stage.embedding for stage in self.stages.values()
        )

    def _moved(self, number: int) -> list[str]:
        """The tensors of an offloaded layer that are copied."""
        base = split_host(self._policy[number])[0]
        found = offloaded_tensors(self._layer(number), base, self.training)
        return [one for one in found if not (one == "x" and self._received(number))]

    def _send(self, number: int, micro: int) -> None:
        """Copy what a layer keeps to the host; the copy before it has to be done."""
        self._drop_sent()
        moved = self._moved(number)
        if not moved:
            return
        names = tuple(self._name(one, number, micro) for one in moved)
        copy_s = self.fabric.copy_s(sum(self._layer(number).sizes[one] for one in moved))
        host = f"H {number} {micro}"
        self._add(
            Op(f"offload {number} {micro}", "forward", copy_s, 0, names, {host: 0}, stream=D2H)
        )
        self._sent = host, names

    def _drop_sent(self) -> None:
        """Wait for the last copy to the host, and free what was copied."""
        if self._sent is not None:
            host, names = self._sent
            self._add(Op(f"drop {host}", "forward", reads=(host, *names)))
            self._sent = None

    def _fetch(self, number: int, micro: int, after: str) -> None:
        """Copy back what a layer keeps, once tensor `after` is there."""
        moved, sizes = self._moved(number), self._layer(number).sizes
        if not moved:
            return
        writes = {self._name(one, number, micro, back=True): sizes[one] for one in moved}
        copy_s = self.fabric.copy_s(sum(writes.values()))
        reads = (f"H {number} {micro}", after)
        self._add(Op(f"fetch {number} {micro}", "backward", copy_s, 0, reads, writes, stream=H2D))
