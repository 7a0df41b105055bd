"""Lower bounds on the time and the memory of a step, without simulating it."""

from __future__ import annotations

from .architecture import Architecture
from .degrees import Degrees
from .fabric import Fabric
from .layer_ops import LayerOps, LayerWriter, kept_tensors, repeated_ops
from .rank_memory import lasting_bytes
from .stages import StageParts, rank_stages, split_stages
from .tape import RankOp
from .training import Training


class StepBounds:
    """Bounds for settings that share a model and a fabric; layers are written once.

    Notes
    -----
    O(ops of a layer) for new sizes of a layer, O(stages) for those known.
    """

    def __init__(self, model: Architecture, fabric: Fabric) -> None:
        self.model = model
        self.fabric = fabric
        self._layers: dict[tuple[object, ...], LayerOps] = {}

    def time_s(self, degrees: Degrees, training: Training) -> float:
        """Seconds that no order of the micro-batches can beat.

        A device runs all its stages for all micro-batches. It cannot begin before the first of them
        has passed the stages before it, nor end the step before its last backward has passed them
        again. What is recomputed is not counted, nor what hides behind what computes.
        """
        stages = split_stages(self.model, degrees, training)
        count = training.micro_batches(degrees)
        times = [self._stage_s(degrees, training, stage) for stage in stages]
        best = 0.0
        before = 0.0
        for rank in range(degrees.pipeline):
            mine = rank_stages(stages, degrees, rank)
            work = count * sum(sum(times[stage.number]) for stage in mine)
            best = max(best, work + before)
            before += sum(times[rank])
        return best

    def memory_bytes(self, degrees: Degrees, training: Training, rank: int) -> int:
        """Bytes that a pipeline rank holds at once whatever the allocator does.

        What lasts, and what the first backward finds: as many micro-batches as are begun before
        it, each with what its layers keep.
        """
        stages = rank_stages(split_stages(self.model, degrees, training), degrees, rank)
        lasting = lasting_bytes(self.model, degrees, training, stages).total
        count = training.micro_batches(degrees)
        begun = min(count, degrees.pipeline - rank) if degrees.pipeline > 1 else 1
        if training.schedule == "gpipe" and degrees.pipeline > 1:
            begun = count
        stage = stages[-1] if training.schedule == "interleaved" else stages[0]
        return lasting + begun * self._kept_bytes(degrees, training, stage, rank)

    def _layer(self, degrees: Degrees, training: Training, experts: bool) -> LayerOps:
        tokens = training.micro_batch(degrees) * training.seq // degrees.context
        key = (
            *(tokens, degrees.tensor, degrees.context, degrees.expert, training.seq, experts),
            *(training.compiled, training.float8, training.eager_attention, training.regather),
        )
        if key not in self._layers:
            writer = LayerWriter(self.model, degrees, training, tokens, self.fabric)
            self._layers[key] = writer.layer(experts)
        return self._layers[key]

    def _op_s(self, op: RankOp) -> float:
        if op.stream != "compute":
            return op.link_s
        share = self.fabric.attention_share if op.kind == "attention" else 1.0
        return self.fabric.op_s(op.flops / share, op.float8_flops, op.moved_bytes) + op.link_s

    def _stage_s(
        self, degrees: Degrees, training: Training, stage: StageParts
    ) -> tuple[float, float]:
        """(forward, backward) of one micro-batch."""
        forward_s = backward_s = 0.0
        for experts in (False, True):
            number = sum(self.model.has_experts(i) == experts for i in stage.layers)
            if number:
                layer = self._layer(degrees, training, experts)
                forward_s += number * sum(self._op_s(op) for op in layer.forward)
                backward_s += number * sum(self._op_s(op) for op in layer.backward)
        if stage.head:
            tokens = training.micro_batch(degrees) * training.seq // degrees.context
            columns = self.model.vocab // degrees.tensor
            product_s = self.fabric.op_s(2.0 * tokens * self.model.hidden * columns, 0, 0)
            forward_s += product_s
            backward_s += 2 * product_s
        return forward_s, backward_s

    def _kept_bytes(
        self, degrees: Degrees, training: Training, stage: StageParts, rank: int
    ) -> int:
        total = 0
        policies = training.policies(len(stage.layers), rank)
        for number, policy in zip(stage.layers, policies, strict=True):
            layer = self._layer(degrees, training, self.model.has_experts(number))
            kept = kept_tensors(layer, policy, training)
            again = repeated_ops(layer, kept)
            read = {t for op in (*again, *layer.backward) for t in op.reads}
            if number != stage.layers.start:
                total += layer.sizes["x"]  # of the first, it may be a buffer that lasts
            total += sum(layer.sizes[t] for t in kept & read if t != layer.output)
        return total


def recomputed_s(
    bounds: StepBounds, degrees: Degrees, training: Training, policy: str, experts: bool
) -> float:
    """Seconds for which a layer computes again under `policy`."""
    layer = bounds._layer(degrees, training, experts)
    again = repeated_ops(layer, kept_tensors(layer, policy, training))
    return sum(bounds._op_s(op) for op in again)
