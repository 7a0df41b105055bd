"""Lower bounds on the time and the memory of a step, without simulating it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..pipelines.order_arrays import order_arrays
from ..pipelines.order_seconds import least_makespan, order_makespan
from ..workloads.architecture import Architecture
from .degrees import Degrees
from .end_seconds import EndSeconds, LayerOnce, end_seconds, layer_once, optimizer_s
from .fabric import Fabric
from .float8_layer import gathers_float8, write_layer
from .kept_names import split_host
from .layer_ops import LayerOps
from .layer_recompute import kept_tensors, offloaded_tensors, repeated_ops
from .layer_spans import backward_ops, backward_peak_bytes, op_s, span_of
from .layers_in_turn import LayerCosts, LayersInTurn
from .memory_bounds import KeptByStage, LayerBytes, RankSizes, least_bytes, stage_sizes
from .rank_loss import least_loss_bytes
from .rank_memory import lasting_bytes
from .rank_time import message_link
from .stages import StageParts, layer_share, rank_stages, split_stages, stage_policies
from .training import Training
from .unit_seconds import UnitSeconds


@dataclass(frozen=True, slots=True)
class _StageSeconds:
    """Of the layers of a stage, for one micro-batch; bytes that are copied to the host."""

    forward_s: float
    backward_s: float
    copied_bytes: int


MOST_PLAYED = 300_000
"""An order with more forwards is not played: its bound has a closed form, which is lower."""


class StepBounds:
    """Bounds for settings that share a model and a fabric; layers are written once.

    Notes
    -----
    O(ops of a layer) for a new size of layer, O(layers + actions of all ranks) for known sizes.
    """

    def __init__(self, model: Architecture, fabric: Fabric) -> None:
        self.model = model
        self.fabric = fabric
        self._layers: dict[tuple[object, ...], LayerOps] = {}
        self._costs: dict[tuple[object, ...], LayerCosts] = {}
        self._ranks: dict[tuple[Degrees, Training, int], RankSizes] = {}
        self._kept_in: dict[tuple[object, ...], KeptByStage] = {}
        self._seconds: dict[tuple[object, ...], _StageSeconds] = {}
        self._ends: dict[tuple[object, ...], EndSeconds] = {}
        self._once: dict[tuple[object, ...], LayerOnce] = {}
        self._after: dict[tuple[object, ...], float] = {}
        self._experts = tuple(map(model.has_experts, range(model.num_layers)))

    def time_s(self, degrees: Degrees, training: Training, recompute: str = "") -> float:
        """Seconds that a step takes at least.

        With a pipeline, these are the seconds of the step if no copy to the host is waited for:
        where nothing is copied, `step_time` finds the same. Without one, computation takes its own
        time, and so do the messages that gather and reduce; what one waits for the other does not
        count. `recompute` takes the place of that of `training`, if it is given.
        """
        recompute = recompute or training.recompute
        stages = split_stages(self.model, degrees, training)
        costs = [self._stage_costs(degrees, training, stage, recompute) for stage in stages]
        count, rate = training.micro_batches(degrees), self._host_rate
        each = [costs[k :: degrees.pipeline] for k in range(degrees.pipeline)]
        least_s = count * max(sum(one.copied_bytes for one in mine) for mine in each) / rate
        if degrees.pipeline == 1:
            return max(least_s, self._plain_s(degrees, training, stages[0], recompute))
        return max(least_s, self._pipeline_s(degrees, training, stages, costs))

    def is_exact(self, degrees: Degrees, training: Training) -> bool:
        """Whether `time_s` is the time of the step, and not only a bound."""
        played = _is_played(degrees, training)
        return degrees.pipeline > 1 and played and "@host" not in training.recompute

    def _pipeline_s(
        self,
        degrees: Degrees,
        training: Training,
        stages: list[StageParts],
        costs: list[_StageSeconds],
    ) -> float:
        """All stages in the order of the schedule; then what the slowest rank does once."""
        ends = [self._end_seconds(degrees, training, stage) for stage in stages]
        forward = [one.forward_s + end.forward_s for one, end in zip(costs, ends, strict=True)]
        backward = [one.backward_s + end.backward_s for one, end in zip(costs, ends, strict=True)]
        message_s = message_link(degrees, self.fabric).time_s(
            self.layer_input_bytes(degrees, training)
        )
        count = training.micro_batches(degrees)
        which = training.schedule, degrees.pipeline, count
        if _is_played(degrees, training):
            order = order_arrays(*which, training.num_chunks)
            found = order_makespan(order, forward, backward, message_s)
        else:
            found = least_makespan(*which, forward, backward, message_s)
        return found + self._after_s(degrees, training, stages)

    def _after_s(self, degrees: Degrees, training: Training, stages: list[StageParts]) -> float:
        """Seconds of the rank whose gathers, reductions and optimizers take longest, stage by
        stage."""
        key = degrees, replace(training, recompute="none")
        if key not in self._after:
            once = [
                self._end_seconds(degrees, training, stage).once_s
                + sum(self._layer_once(degrees, training, one).total_s for one in stage.layers)
                + optimizer_s(self.model, degrees, training, self.fabric, [stage])
                for stage in stages
            ]
            ranks = range(degrees.pipeline)
            self._after[key] = max(sum(once[k :: degrees.pipeline]) for k in ranks)
        return self._after[key]

    def _plain_s(
        self, degrees: Degrees, training: Training, stage: StageParts, recompute: str
    ) -> float:
        """Without a pipeline: layers on the stream of computation and on that of their units.

        Once three micro-batches are played, each further one takes as much longer as the third: a
        micro-batch begins with both streams where the one before has left them, which is always as
        far after its last backward but one.
        """
        count, units = training.micro_batches(degrees), UnitSeconds(degrees, training, self.fabric)
        plain = LayersInTurn(
            self._of_layers(degrees, training, stage, recompute),
            [self._layer_once(degrees, training, one) for one in stage.layers],
            self._end_seconds(degrees, training, stage),
            optimizer_s(self.model, degrees, training, self.fabric, [stage]),
            gathers=training.state == "fsdp2",
            stays=training.zero_stage == 2,
            averages=units.averages and not units.averages_apart,
            sending=self.fabric.sending(degrees.shards * degrees.tensor),
            all_sending=self._all_sending(degrees),
            in_waves=self.fabric.persistent,
        )
        found = plain.least_s(min(count, 3))
        if count > 3:
            found += (count - 3) * (found - plain.least_s(2))
        return found

    def _all_sending(self, degrees: Degrees) -> float:
        """Share of the processors that messages of all groups hold, if all are sent at once."""
        groups = (
            (degrees.shards, degrees.shards * degrees.tensor),
            (degrees.replicate, degrees.num_devices),
            (degrees.tensor, degrees.tensor),
            (degrees.context, degrees.context * degrees.tensor),
            (degrees.expert, degrees.expert * degrees.tensor),
        )
        return sum(self.fabric.sending(span) for ranks, span in groups if ranks > 1)

    def _end_seconds(self, degrees: Degrees, training: Training, stage: StageParts) -> EndSeconds:
        key = degrees, replace(training, recompute="none"), stage.embedding, stage.head
        if key not in self._ends:
            self._ends[key] = end_seconds(self.model, degrees, training, self.fabric, stage)
        return self._ends[key]

    def _layer_once(self, degrees: Degrees, training: Training, layer: int) -> LayerOnce:
        experts = self._experts[layer]
        key = degrees, replace(training, recompute="none"), experts
        if key not in self._once:
            size = 2 * layer_share(self.model, degrees, layer)
            if gathers_float8(self.model, degrees, training):
                size -= sum(self._layer_ops(degrees, training, experts).weights.values()) // 2
            self._once[key] = layer_once(self.model, degrees, training, self.fabric, layer, size)
        return self._once[key]

    @property
    def _host_rate(self) -> float:
        return self.fabric.host_bytes_per_s * self.fabric.link_efficiency

    def layer_input_bytes(self, degrees: Degrees, training: Training) -> int:
        """Bytes of the input of a layer on a rank."""
        tokens = training.micro_batch(degrees) * training.seq // degrees.context
        return tokens * self.model.hidden * 2 // training.sequence_ranks(degrees)

    def _gathered_bytes(self, degrees: Degrees, training: Training) -> int:
        """Least bytes of a parameter of a layer as it is gathered."""
        return 1 if gathers_float8(self.model, degrees, training) else 2

    def memory_bytes(
        self, degrees: Degrees, training: Training, rank: int, recompute: str = ""
    ) -> int:
        """Bytes that a pipeline rank holds at once whatever the allocator does.

        See `schedsim.clusters.memory_bounds`. `recompute` takes the place of that of `training`, if
        it is given.
        """
        recompute = recompute or training.recompute
        known = self._rank_sizes(degrees, training, rank)
        kept = [self._kept(degrees, training, stage, recompute) for stage in known.stages]
        return least_bytes(degrees, training, known, rank, kept)

    def _kept(
        self, degrees: Degrees, training: Training, stage: StageParts, recompute: str
    ) -> KeptByStage:
        """What a micro-batch keeps in a stage; stages that are alike are added up once."""
        # Gradients of weights are resident in Megatron, and written apart in a split backward.
        gradients = training.state != "megatron" and training.schedule != "zero-bubble"
        key = *self._stage_key(degrees, training, stage, recompute), gradients
        if key not in self._kept_in:
            layers = [
                LayerBytes(
                    one.input_bytes,
                    one.kept_bytes,
                    one.peak_with_gradients if gradients else one.peak_bytes,
                )
                for one in self._of_layers(degrees, training, stage, recompute)
            ]
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
        return least_loss_bytes(training, logits)

    def layer_key(self, degrees: Degrees, training: Training, experts: bool) -> tuple[object, ...]:
        """All that the tensors of a layer depend on."""
        tokens = training.micro_batch(degrees) * training.seq // degrees.context
        return (
            *(tokens, degrees.tensor, degrees.context, degrees.expert),
            *(degrees.whole_experts, training.seq, experts),
            *(training.compiled, training.float8, training.eager_attention, training.regather),
            *(training.state, training.async_tensor, training.whole_sequence, training.libraries),
            training.overlap_tensor,
            training.micro_batch(degrees) > 1,
            *(training.dispatcher, training.hidden_exchange, training.uneven),
            training.micro_batches(degrees) > 1,
        )

    def layer_costs(
        self, degrees: Degrees, training: Training, experts: bool, policy: str
    ) -> LayerCosts:
        """A layer with `policy`, dense or of experts."""
        key = self.layer_key(degrees, training, experts)
        named = policy
        if (*key, named) in self._costs:
            return self._costs[*key, named]
        layer = self._layer_ops(degrees, training, experts)
        policy, host = split_host(policy)
        kept = kept_tensors(layer, policy, training)
        again = repeated_ops(layer, kept, training)
        read = {t for op in (*again, *layer.backward) for t in op.reads}
        kept_bytes = sum(layer.sizes[t] for t in kept & read if t != layer.output)
        moved = offloaded_tensors(layer, policy, training) if host else ()
        ops = backward_ops(layer, again, training)
        backward = [op for op, _ in ops]
        found = LayerCosts(
            sum(op_s(op, self.fabric) for op in layer.forward),
            sum(op_s(op, self.fabric) for op in backward),
            span_of(layer.forward, "x", layer.output, self.fabric),
            span_of(backward, "d.out", layer.input_gradient, self.fabric),
            sum(
                op_s(op, self.fabric)
                for op in (*layer.forward, *backward)
                if op.stream == "compute"
            ),
            sum(
                op_s(op, self.fabric)
                for op in (*layer.forward, *backward)
                if op.stream == "compute" and op.kind == "product"
            ),
            0 if host or "x" not in read else layer.sizes["x"],
            0 if host else kept_bytes,
            frozenset(op.name for op in again),
            sum(layer.sizes[one] for one in moved),
            backward_peak_bytes(layer, ops, kept, gradients=False),
            backward_peak_bytes(layer, ops, kept, gradients=True),
        )
        self._costs[*key, named] = found
        return found

    def _layer_ops(self, degrees: Degrees, training: Training, experts: bool) -> LayerOps:
        key = self.layer_key(degrees, training, experts)
        if key not in self._layers:
            tokens = training.micro_batch(degrees) * training.seq // degrees.context
            self._layers[key] = write_layer(
                self.model, degrees, training, tokens, self.fabric, experts=experts
            )
        return self._layers[key]

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
    ) -> _StageSeconds:
        key = self._stage_key(degrees, training, stage, recompute)
        if key not in self._seconds:
            costs = self._of_layers(degrees, training, stage, recompute)
            # The first input may be a buffer.
            first = self.layer_input_bytes(degrees, training)
            self._seconds[key] = _StageSeconds(
                sum(one.forward_s for one in costs),
                sum(one.backward_s for one in costs)
                + UnitSeconds(degrees, training, self.fabric).stage_sums_s(self.model, stage),
                max(0, sum(one.host_bytes for one in costs) - first),
            )
        return self._seconds[key]


def _is_played(degrees: Degrees, training: Training) -> bool:
    stages = degrees.pipeline * training.num_chunks
    return training.micro_batches(degrees) * stages <= MOST_PLAYED
