"""Units of parameters on a rank: gathered before use, their gradients reduced afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..dataflow.graph import COMPUTE, Graph, Op
from ..simulation.result import Simulation
from ..simulation.schedule import Schedule
from ..simulation.simulator import simulate
from ..workloads.architecture import Architecture
from .degrees import Degrees
from .fabric import Fabric
from .stages import StageParts, end_parameters, layer_shard, layer_share
from .training import Training
from .unit_seconds import UnitSeconds

SHARD_STREAM = "link:shard"
"""The stream that gathers parameters and reduces gradients, one by one: they share the links."""

REPLICA_STREAM = "link:replicas"
"""The stream that averages reduced gradients over replicas, where other links do."""


class UnitWriter:
    """Writes gathers and reductions; `graph` and `schedule` are the result."""

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
        self.model = model
        self.degrees = degrees
        self.training = training
        self.fabric = fabric
        self.seconds = UnitSeconds(degrees, training, fabric)
        self.stages = {stage.number: stage for stage in stages}
        self.one_stream = one_stream
        self.tokens = training.micro_batch(degrees) * training.seq // degrees.context
        self.ops: list[Op] = []
        self.runs: list[int] = []
        self._index: dict[str, int] = {}
        self._accumulated: dict[str, str] = {}
        self._sharded: dict[str, str] = {}
        self._packed: list[tuple[str, str]] = []
        self._gathered: list[str] = []
        self.results: list[str] = []
        self.num_micro = 0
        self.whole = self.tokens * model.hidden * 2
        self.part = self.whole // training.sequence_ranks(degrees)

    @property
    def graph(self) -> Graph:
        """The graph of the ops that were written."""
        return Graph.unchecked("rank", tuple(self.ops), {}, 0, results=tuple(self.results))

    @property
    def schedule(self) -> Schedule:
        """The runs, in order."""
        return Schedule([op.name for op in self.ops], self.runs)

    def simulated(self) -> Simulation:
        """The ops that were written, simulated in order."""
        return simulate(self.graph, self.schedule)

    @property
    def _gathers(self) -> bool:
        return self.training.state == "fsdp2"

    @property
    def _sums_in_pipeline(self) -> bool:
        """Whether a stage sums its gradients, and reduces all after its last backward."""
        return self._gathers and self.degrees.pipeline > 1

    @property
    def _stays(self) -> bool:
        """Whether gathered parameters stay until the last micro-batch."""
        return self.degrees.pipeline > 1 or self.training.zero_stage == 2

    def _add(self, op: Op) -> None:
        if self.one_stream and op.stream != COMPUTE:
            op = replace(op, stream=COMPUTE)
        self._index[op.name] = len(self.ops)
        self.runs.append(len(self.ops))
        self.ops.append(op)

    def _repeat(self, name: str) -> None:
        self.runs.append(self._index[name])

    def _end_units(self, stage: StageParts) -> list[str]:
        """Units besides layers; the two ends are one unit unless they are separate."""
        if not (stage.embedding or stage.head):
            return []
        both = stage.embedding and stage.head
        if both and not self.training.separate_head:
            return ["ends"]
        return ["embedding"] * stage.embedding + ["head"] * stage.head

    def _unit_parameters(self, unit: str) -> int:
        if unit.isdecimal():
            return layer_share(self.model, self.degrees, int(unit))
        pairs = [end_parameters(self.model, one, self.degrees) for one in self.stages.values()]
        embedding = sum(first for first, _ in pairs)
        head = sum(second for _, second in pairs)
        return {"ends": embedding + head, "embedding": embedding, "head": head}[unit]

    def _shard_parameters(self, unit: str) -> int:
        if unit.isdecimal():
            return layer_shard(self.model, self.degrees, int(unit))
        return -(-self._unit_parameters(unit) // self.degrees.shards)

    def _gathered_bytes(self, unit: str) -> int:
        """Bytes of a unit's whole parameters as they are gathered."""
        return 2 * self._unit_parameters(unit)

    def _weight(self, unit: str, micro: int) -> str:
        """The name of gathered parameters, as a micro-batch reads them."""
        return f"W {unit}" if self._stays or not unit.isdecimal() else f"W {unit} {micro}"

    def _begin_gather(self, unit: str, micro: int) -> None:
        """Gather a unit into a buffer."""
        weight = self._weight(unit, micro)
        name = f"gather {weight}"
        if name in self._index:
            self._repeat(name)
            return
        size = self._gathered_bytes(unit)
        cast = -(-size // self.degrees.shards)
        buffer = f"AG {weight}"
        self._add(
            Op(
                name,
                "forward",
                self.seconds.link_s(size),
                0,
                (),
                {f"{buffer} cast": cast, buffer: size},
                stream=SHARD_STREAM,
            )
        )

    def _unpack(self, unit: str, micro: int) -> None:
        """Copy a gathered unit out of its buffer."""
        weight = self._weight(unit, micro)
        name = f"unpack {weight}"
        if name in self._index:
            self._repeat(name)
            return
        buffer = f"AG {weight}"
        size = self._gathered_bytes(unit)
        # Sent tensors are dropped when the host has issued the gather.
        reads = (buffer,) if self.one_stream else (buffer, f"{buffer} cast")
        moved = self.seconds.unpack_s(size)
        self._add(Op(name, "forward", moved, 0, reads, {weight: size}))

    def _gather_now(self, unit: str, micro: int) -> None:
        """A unit of the forward in the order of its host: the buffer before goes after the gather.

        It stays as long so that a copy out of it may run beside the next gather.
        """
        weight = self._weight(unit, micro)
        if f"gather {weight}" in self._index:
            return  # it stays gathered
        self._begin_gather(unit, micro)
        self._drop_gathered()
        self._unpack(unit, micro)
        self._gathered.append(f"AG {weight}")

    def _drop_gathered(self) -> None:
        """Free the buffer of the last gather of the forward."""
        while self._gathered:
            buffer = self._gathered.pop()
            self._add(Op(f"drop {buffer}", "forward", reads=(buffer,)))

    def _reduce(self, unit: str, key: str) -> None:
        """Pack the gradients of a unit and reduce them to the rank's part."""
        gradients = self._accumulated.pop(unit, "")
        if not gradients:
            return
        names = tuple(gradients.split("|"))
        state = self.training.state
        count, kept = self._unit_parameters(unit), self._shard_parameters(unit)
        seconds = self.seconds.reduce_s(count)
        if state == "megatron":
            # Gradients are reduced, and parameters gathered, beside computation.
            reduced = f"SG {unit} {key}"
            writes = {reduced: 0} if self.seconds.averages else {}
            self._add(
                Op(
                    f"reduce {unit} {key}",
                    "backward",
                    seconds,
                    0,
                    names,
                    writes,
                    stream=SHARD_STREAM,
                )
            )
            self._average(unit, key, reduced)
            return
        if state == "bf16":
            if self.degrees.replicate * self.degrees.shards > 1:
                self._add(
                    Op(f"reduce {unit} {key}", "backward", seconds, 0, names, stream=SHARD_STREAM)
                )
            return
        weight = f"W {unit}"
        if self._sums_in_pipeline and f"unpack {weight}" in self._index:
            self._add(Op(f"reshard {weight}", "backward", reads=(weight,)))
        self._release()
        buffer = f"RS {unit} {key}"
        moved = self.seconds.pack_s(count)
        packed = self.training.reduced_bytes * count
        self._add(Op(f"pack {unit} {key}", "backward", moved, 0, names, {buffer: packed}))
        made, before = f"SG {unit} {key}", self._sharded.get(unit)
        reads = (buffer, before) if before else (buffer,)
        in_place = {made: before} if before else {}
        self._add(
            Op(
                f"reduce {unit} {key}",
                "backward",
                seconds,
                2 * kept if self.training.reduce_bf16 else 0,  # before it is converted
                reads,
                {made: 4 * kept},
                in_place=in_place,
                stream=SHARD_STREAM,
            )
        )
        self._sharded[unit] = self._average(unit, key, made)
        if not self.training.libraries.packed_apart:
            self._packed.append((buffer, made))

    def _average(self, unit: str, key: str, reduced: str) -> str:
        """Average reduced gradients over replicas; the name of what the rank keeps."""
        if not self.seconds.averages:
            return reduced
        kept = self._shard_parameters(unit)
        made = f"{reduced} averaged"
        size = 4 * kept if self._gathers else 0
        self._add(
            Op(
                f"average {unit} {key}",
                "backward",
                self.seconds.average_s(kept),
                0,
                (reduced,),
                {made: size},
                in_place={made: reduced},
                stream=REPLICA_STREAM if self.seconds.averages_apart else SHARD_STREAM,
            )
        )
        return made

    def _release(self) -> None:
        """Free the last packed buffer, which is held until the next one is needed.

        Computation waits until it is reduced.
        """
        while self._packed:
            buffer, reduced = self._packed.pop()
            self._add(Op(f"free {buffer}", "backward", reads=(buffer, reduced)))
