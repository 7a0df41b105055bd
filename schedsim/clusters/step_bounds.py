"""Lower bounds on the time and the memory of a step, without simulating it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..workloads.architecture import Architecture
from .degrees import Degrees
from .fabric import Fabric
from .float8_layer import gathers_float8, write_layer
from .kept_names import split_host
from .layer_ops import LayerOps
from .layer_recompute import kept_tensors, offloaded_tensors, repeated_ops
from .memory_bounds import KeptByStage, LayerBytes, RankSizes, least_bytes, stage_sizes
from .rank_memory import lasting_bytes
from .stages import StageParts, layer_share, rank_stages, split_stages, stage_policies
from .tape import RankOp
from .training import Training


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """A layer under one policy: its seconds, its input, its kept bytes, what runs again.

    Of an offloaded layer, input and kept bytes on the device are 0, and `host_bytes` their sum. An
    input that its backward does not read counts 0 as well.
    `saved_bytes` is what its backward reads of its forward, recomputed or not, without its input.
    """

    forward_s: float
    backward_s: float
    input_bytes: int
    kept_bytes: int
    again: frozenset[str]
    host_bytes: int = 0
    saved_bytes: int = 0


class StepBounds:
    """Bounds for settings that share a model and a fabric; layers are written once.

    Notes
    -----
    O(ops of a layer) for a new size of layer, O(layers) for known sizes.
    """

    def __init__(self, model: Architecture, fabric: Fabric) -> None:
        self.model = model
        self.fabric = fabric
        self._layers: dict[tuple[object, ...], LayerOps] = {}
        self._costs: dict[tuple[object, ...], LayerCosts] = {}
        self._ranks: dict[tuple[Degrees, Training, int], RankSizes] = {}
        self._kept_in: dict[tuple[object, ...], KeptByStage] = {}
        self._seconds: dict[tuple[object, ...], tuple[float, int]] = {}
        self._experts = tuple(map(model.has_experts, range(model.num_layers)))

    def time_s(self, degrees: Degrees, training: Training, recompute: str = "") -> float:
        """Seconds that no order of the micro-batches can beat.

        A device runs all its stages for all micro-batches. It cannot begin before the first
        micro-batch has passed the earlier stages, and the step cannot end before the last backward
        has passed these stages again. Messages that overlap with computation do not count.
        `recompute` takes the place of that of `training`, if it is given.
        """
        recompute = recompute or training.recompute
        stages = split_stages(self.model, degrees, training)
        count = training.micro_batches(degrees)
        costs = [self._stage_costs(degrees, training, stage, recompute) for stage in stages]
        times = [seconds for seconds, _ in costs]
        times[-1] += self._head_s(degrees, training)
        best = before = 0.0
        for rank in range(degrees.pipeline):
            mine = rank_stages(stages, degrees, rank)
            best = max(best, count * sum(times[stage.number] for stage in mine) + before)
            copied = sum(costs[stage.number][1] for stage in mine)
            best = max(best, count * copied / self._host_rate)
            before += times[rank]
        if degrees.pipeline == 1 and training.state == "fsdp2" and training.zero_stage == 3:
            best = max(best, count * self._shard_links_s(degrees, training))
        return best

    @property
    def _host_rate(self) -> float:
        return self.fabric.host_bytes_per_s * self.fabric.link_efficiency

    def layer_input_bytes(self, degrees: Degrees, training: Training) -> int:
        """Bytes of the input of a layer on a rank."""
        tokens = training.micro_batch(degrees) * training.seq // degrees.context
        return tokens * self.model.hidden * 2 // degrees.tensor

    def _gathered_bytes(self, degrees: Degrees, training: Training) -> int:
        """Least bytes of a parameter of a layer as it is gathered."""
        return 1 if gathers_float8(self.model, degrees, training) else 2

    def _shard_links_s(self, degrees: Degrees, training: Training) -> float:
        """Link seconds of one micro-batch: each layer is gathered twice, the last layer once."""
        shares = [layer_share(self.model, degrees, i) for i in range(self.model.num_layers)]
        span = degrees.shards * degrees.tensor

        def link_s(size_bytes: int) -> float:
            return self.fabric.gather_s(size_bytes, degrees.shards, span)

        size = self._gathered_bytes(degrees, training)
        twice = 2 * sum(link_s(size * share) for share in shares) - link_s(size * shares[-1])
        return twice + sum(link_s(4 * share) for share in shares)

    def memory_bytes(
        self, degrees: Degrees, training: Training, rank: int, recompute: str = ""
    ) -> int:
        """Bytes that a pipeline rank holds at once whatever the allocator does.

        Under FSDP2 see `schedsim.clusters.memory_bounds`. Otherwise these are the resident bytes
        and the state at the first backward: the kept tensors of all micro-batches begun before it,
        and the logits. `recompute` takes the place of that of `training`, if it is given.
        """
        recompute = recompute or training.recompute
        known = self._rank_sizes(degrees, training, rank)
        kept = [self._kept(degrees, training, stage, recompute) for stage in known.stages]
        if training.state == "fsdp2":
            return least_bytes(degrees, training, known, rank, kept)
        count = training.micro_batches(degrees)
        begun = min(count, degrees.pipeline - rank) if degrees.pipeline > 1 else 1
        if training.schedule == "gpipe":
            begun = count
        at = -1 if training.schedule == "interleaved" else 0
        # The input of the first layer may be a resident buffer.
        held = begun * (kept[at].total_bytes - kept[at].first_input_bytes)
        return known.lasting_bytes + held + known.logits_bytes * known.stages[at].head

    def _kept(
        self, degrees: Degrees, training: Training, stage: StageParts, recompute: str
    ) -> KeptByStage:
        """What a micro-batch keeps in a stage; stages that are alike are added up once."""
        key = self._stage_key(degrees, training, stage, recompute)
        if key not in self._kept_in:
            costs = self._of_layers(degrees, training, stage, recompute)
            layers = [LayerBytes(one.input_bytes, one.kept_bytes, one.saved_bytes) for one in costs]
            self._kept_in[key] = KeptByStage.of_layers(layers)
        return self._kept_in[key]

    def _stage_key(
        self, degrees: Degrees, training: Training, stage: StageParts, recompute: str
    ) -> tuple[object, ...]:
        """All that the layers of a stage depend on."""
        of_ranks = recompute.split("/")
        mine = of_ranks[min(stage.number % degrees.pipeline, len(of_ranks) - 1)]
        experts = self._experts[stage.layers.start : stage.layers.stop]
        return (*self.layer_key(degrees, training, False), mine, experts, stage.head)

    def _rank_sizes(self, degrees: Degrees, training: Training, rank: int) -> RankSizes:
        """What does not depend on the recomputation, worked out once."""
        plain = training if training.recompute == "none" else replace(training, recompute="none")
        key = degrees, plain, rank
        if key not in self._ranks:
            stages = rank_stages(split_stages(self.model, degrees, training), degrees, rank)
            each = self._gathered_bytes(degrees, training)
            self._ranks[key] = RankSizes(
                stages,
                [stage_sizes(self.model, degrees, training, one, each) for one in stages],
                lasting_bytes(self.model, degrees, training, stages).total,
                each,
                self._logits_bytes(degrees, training),
                self.layer_input_bytes(degrees, training),
            )
        return self._ranks[key]

    def _logits_bytes(self, degrees: Degrees, training: Training) -> int:
        tokens = training.micro_batch(degrees) * training.seq // degrees.context
        logits = 2 * tokens * (self.model.vocab // degrees.tensor)
        if training.compiled_loss or training.loss_chunks > 1:
            return 2 * logits
        return 6 * logits

    def layer_key(self, degrees: Degrees, training: Training, experts: bool) -> tuple[object, ...]:
        """All that the tensors of a layer depend on."""
        tokens = training.micro_batch(degrees) * training.seq // degrees.context
        return (
            *(tokens, degrees.tensor, degrees.context, degrees.expert, training.seq, experts),
            *(training.compiled, training.float8, training.eager_attention, training.regather),
            *(training.state, training.async_tensor, training.libraries),
            training.micro_batch(degrees) > 1,
        )

    def layer_costs(
        self, degrees: Degrees, training: Training, experts: bool, policy: str
    ) -> LayerCosts:
        """A layer with `policy`, dense or of experts."""
        tokens = training.micro_batch(degrees) * training.seq // degrees.context
        key = self.layer_key(degrees, training, experts)
        named = policy
        if (*key, named) in self._costs:
            return self._costs[*key, named]
        if key not in self._layers:
            self._layers[key] = write_layer(
                self.model, degrees, training, tokens, self.fabric, experts=experts
            )
        layer = self._layers[key]
        policy, host = split_host(policy)
        kept = kept_tensors(layer, policy, training)
        again = repeated_ops(layer, kept, training)
        read = {t for op in (*again, *layer.backward) for t in op.reads}
        kept_bytes = sum(layer.sizes[t] for t in kept & read if t != layer.output)
        made = {t for op in layer.forward for t in op.writes if t != layer.output}
        saved = made & {t for op in layer.backward for t in op.reads}
        moved = offloaded_tensors(layer, policy, training) if host else ()
        found = LayerCosts(
            sum(self._op_s(op) for op in layer.forward),
            sum(self._op_s(op) for op in (*again, *layer.backward)),
            0 if host or "x" not in read else layer.sizes["x"],
            0 if host else kept_bytes,
            frozenset(op.name for op in again),
            sum(layer.sizes[one] for one in moved),
            sum(layer.sizes[one] for one in saved),
        )
        self._costs[*key, named] = found
        return found

    def _op_s(self, op: RankOp) -> float:
        if op.stream != "compute":
            return op.link_s
        return op.compute_s(self.fabric) + op.link_s

    def _of_layers(
        self, degrees: Degrees, training: Training, stage: StageParts, recompute: str
    ) -> list[LayerCosts]:
        policies = stage_policies(recompute, degrees, stage)
        return [
            self.layer_costs(degrees, training, self._experts[number], policy)
            for number, policy in zip(stage.layers, policies, strict=True)
        ]

    def _stage_costs(
        self, degrees: Degrees, training: Training, stage: StageParts, recompute: str
    ) -> tuple[float, int]:
        """Seconds of the layers for one micro-batch, and bytes that are copied to the host."""
        key = self._stage_key(degrees, training, stage, recompute)
        if key not in self._seconds:
            costs = self._of_layers(degrees, training, stage, recompute)
            # The first input may be a buffer.
            first = self.layer_input_bytes(degrees, training)
            self._seconds[key] = (
                sum(one.forward_s + one.backward_s for one in costs),
                max(0, sum(one.host_bytes for one in costs) - first),
            )
        return self._seconds[key]

    def _head_s(self, degrees: Degrees, training: Training) -> float:
        """Forward and backward of the head for one micro-batch."""
        tokens = training.micro_batch(degrees) * training.seq // degrees.context
        columns = self.model.vocab // degrees.tensor
        return 3 * self.fabric.op_s(2.0 * tokens * self.model.hidden * columns, 0, 0)
