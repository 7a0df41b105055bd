"""Layers of a rank: their ops by micro-batch, what runs again, and what waits in host memory.

An offloaded layer keeps nothing on the device from its forward to its backward. What it keeps is
copied to the host when its forward is done, and stays on the device until the next such copy
begins, or the next backward of a layer ends: one copy at a time is on its way. The copy back begins
when the backward of the offloaded layer before it does.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..dataflow.graph import Op
from ..dataflow.streams import D2H, H2D
from ..workloads.architecture import Architecture
from .degrees import Degrees
from .fabric import Fabric
from .float8_layer import gathers_float8, write_layer
from .kept_names import kept_names, split_host
from .layer_ops import LayerOps
from .layer_recompute import kept_tensors, offloaded_tensors, repeated_ops
from .rank_ends import EndWriter
from .stages import StageParts, layer_policies
from .tape import RankOp
from .training import Training

BACK = " back"
"""Ends the name of a tensor that was copied back, or made again from such tensors."""


class LayerOpsWriter(EndWriter):
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
        for stage in stages:
            policies = layer_policies(training, degrees, stage)
            self._policy |= dict(zip(stage.layers, policies, strict=True))

    @property
    def layer_ops(self) -> list[RankOp | None]:
        """The op of each run, in its layer; ``None`` for runs that are of no layer."""
        return [self._op_of.get(self.ops[op].name) for op in self.runs]

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
            idle = listed and not self.training.compiled
            self._again[key] = again, (kept - read if idle else set())
        return self._again[key]

    def _name(self, local: str, number: int, micro: int, *, back: bool = False) -> str:
        layer = self._layer(number)
        if local == layer.output:
            return f"A x {number + 1} {micro}"
        if local == "d.out":
            return f"D x {number + 1} {micro}"
        if local == layer.input_gradient:
            return f"D x {number} {micro}"
        if local == "W":
            return self._weight(str(number), micro)
        kind = {"d": "D", "g": "G"}.get(local.partition(".")[0], "A")
        if local == "gate":
            kind = "A"
        late = back and kind == "A" and not (local == "x" and self._received(number))
        return f"{kind} {local} {number} {micro}{BACK if late else ''}"

    def _instance(self, op: RankOp, number: int, micro: int, phase: str) -> Op:
        """The op of a micro-batch; `phase` may be ``again``, for a copy of an op of the forward."""
        back = phase != "forward" and self._offloads(number)

        def name(local: str) -> str:
            if phase == "again" and local == self._layer(number).output:
                return f"A {local} {number} {micro}{BACK}"
            return self._name(local, number, micro, back=back)

        reads = [one for one in op.reads if one != "W" or self._gathers]
        seconds = op.compute_s(self.fabric) + op.link_s
        if op.stream != "compute":
            seconds = op.link_s
        writes = {name(one): size for one, size in op.writes.items()}
        if self.training.state == "megatron":
            writes = {one: size for one, size in writes.items() if not one.startswith("G ")}
        again = phase == "again"
        full_name = f"{op.name} {number} {micro}{' again' if again else ''}"
        self._op_of[full_name] = op
        return Op(
            full_name,
            "backward" if again else phase,
            seconds,
            op.workspace_bytes,
            tuple(dict.fromkeys(name(one) for one in reads)),
            writes,
            in_place={name(one): name(other) for one, other in op.in_place.items()},
            stream="compute" if op.stream == "compute" else f"link:{op.stream}",
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
