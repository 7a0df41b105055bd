"""Pipelines: the layers of a chain, split into stages on devices, for several micro-batches.

In this package a *layer* is a stage of the chain, the smallest unit, and a *stage* is a range of
consecutive layers on one device. Stage v is on device ``v % num_devices``; with more stages than
devices, a
device holds several stages, its *chunks*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..checks.value_checks import check_bytes, check_seconds
from ..dataflow.chain import Chain
from ..dataflow.graph import Graph
from ..errors import InvalidWorkloadError

if TYPE_CHECKING:
    from ..plans.links import Link


@dataclass(frozen=True, slots=True)
class WeightGradient:
    """The part of a layer's backward that makes the gradients of its weights.

    Attributes
    ----------
    time_s
        Its time, a part of the layer's ``backward_s``.
    kept_bytes
        Bytes of the saved bundle that it reads; the rest is freed once the input's gradient exists.
    gradient_bytes
        Bytes that it gets from the other part of the backward: gradients inside the layer.
    """

    time_s: float
    kept_bytes: int
    gradient_bytes: int


@dataclass(frozen=True, slots=True)
class Collectives:
    """Tensor-parallel collectives of one layer: seconds on the link of the device."""

    forward_s: float = 0.0
    backward_s: float = 0.0


@dataclass(frozen=True)
class Pipeline:
    """Layers on devices, in stages, for one training step of several micro-batches.

    Parameters
    ----------
    chain
        One micro-batch through the whole model. Its static bytes are not used.
    cuts
        First layer of each stage, then the number of layers: ``(0, 2, 4)`` means two stages of two.
    num_devices
        Number of devices; it divides the number of stages.
    num_micro_batches
        At least 1.
    layer_static_bytes
        Resident bytes, one entry per layer; none by default.
    link
        The link between any two devices, with both directions independent; ``None``: messages take
        no time.
    split_backward
        Whether the backward of each layer is two ops: B makes the gradient of the input, W the
        gradients of the weights, for which no other op waits.
    weight_gradients
        Times and sizes of W, one entry per layer. By default W takes half of the backward's time
        and reads everything that the backward reads.
    collectives
        Collectives, one entry per layer, which run on stream ``link:K-tp``. A backward then does
        not read the output of its layer.
    free_outputs
        Whether the output of a stage is freed once it is sent, as the backward does not read it
        (Korthikanti et al. 2022, appendix B).
    waits_for_gradient
        Whether recomputation begins only after the stage's gradient has arrived, as it does where
        the backward itself triggers it. By default recomputation may run while the stage waits.

    Examples
    --------
    >>> from schedsim.workloads.synthetic import uniform
    >>> pipeline = Pipeline(uniform(8), (0, 2, 4, 6, 8), num_devices=4, num_micro_batches=8)
    >>> pipeline.num_stages, pipeline.stage_layers(3), pipeline.store_all_s
    (4, range(6, 8), 0.192)
    """

    chain: Chain
    cuts: tuple[int, ...]
    num_devices: int
    num_micro_batches: int
    layer_static_bytes: tuple[int, ...] = ()
    link: Link | None = None
    split_backward: bool = False
    weight_gradients: tuple[WeightGradient, ...] = ()
    collectives: tuple[Collectives, ...] = ()
    free_outputs: bool = False
    waits_for_gradient: bool = False
    kind: str = field(default="pipeline", init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("cuts", "layer_static_bytes", "weight_gradients", "collectives"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        num_layers = self.chain.num_stages
        for name in ("num_devices", "num_micro_batches"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidWorkloadError(f"{value!r} is not a whole number, 1 or more", path=name)
        steps = zip(self.cuts, self.cuts[1:], strict=False)
        if len(self.cuts) < 2 or self.cuts[0] or any(b <= a for a, b in steps):
            raise InvalidWorkloadError(f"{self.cuts} does not rise from 0", path="cuts")
        if self.cuts[-1] != num_layers:
            raise InvalidWorkloadError(
                f"ends at {self.cuts[-1]}, but the chain has {num_layers} layers",
                path="cuts",
                hint="the last entry is the number of layers",
            )
        if self.num_stages % self.num_devices:
            raise InvalidWorkloadError(
                f"{self.num_stages} stages are not a multiple of {self.num_devices} devices",
                path="cuts",
                hint="every device holds the same number of stages",
            )
        self._check_lengths()
        for i, size in enumerate(self.layer_static_bytes):
            check_bytes(size, f"layer_static_bytes[{i}]")
        for i, part in enumerate(self.weight_gradients):
            self._check_weight_gradient(i, part)
        for i, both in enumerate(self.collectives):
            check_seconds(both.forward_s, f"collectives[{i}].forward_s")
            check_seconds(both.backward_s, f"collectives[{i}].backward_s")

    def _check_lengths(self) -> None:
        num = self.chain.num_stages
        for name in ("layer_static_bytes", "weight_gradients", "collectives"):
            given = len(getattr(self, name))
            if given not in (0, num):
                raise InvalidWorkloadError(f"{given} entries for {num} layers", path=name)
        if self.weight_gradients and not self.split_backward:
            raise InvalidWorkloadError(
                "given, but the backward is not split",
                path="weight_gradients",
                hint="set split_backward=True",
            )

    def _check_weight_gradient(self, i: int, part: WeightGradient) -> None:
        path, layer = f"weight_gradients[{i}]", self.chain.stages[i]
        check_seconds(part.time_s, f"{path}.time_s")
        check_bytes(part.kept_bytes, f"{path}.kept_bytes")
        check_bytes(part.gradient_bytes, f"{path}.gradient_bytes")
        for name, value, limit, what in (
            ("time_s", part.time_s, layer.backward_s, "the layer's backward_s"),
            (
                "kept_bytes",
                part.kept_bytes,
                layer.saved_bytes - layer.output_bytes,
                "what the layer saves besides its output",
            ),
        ):
            if value > limit:
                raise InvalidWorkloadError(
                    f"{value} exceeds {what}, {limit}", path=f"{path}.{name}"
                )

    @property
    def name(self) -> str:
        """The name of the chain."""
        return self.chain.name

    @property
    def num_stages(self) -> int:
        """Number of stages, on all devices together."""
        return len(self.cuts) - 1

    @property
    def num_chunks(self) -> int:
        """Number of stages on a device."""
        return self.num_stages // self.num_devices

    def device_of(self, stage: int) -> int:
        """The device that holds `stage`."""
        return stage % self.num_devices

    def stage_layers(self, stage: int) -> range:
        """The layers of `stage`."""
        return range(self.cuts[stage], self.cuts[stage + 1])

    @cached_property
    def device_static_bytes(self) -> tuple[int, ...]:
        """Resident bytes of each device."""
        total = [0] * self.num_devices
        for stage in range(self.num_stages):
            layers = self.layer_static_bytes[self.cuts[stage] : self.cuts[stage + 1]]
            total[self.device_of(stage)] += sum(layers)
        return tuple(total)

    @cached_property
    def store_all_s(self) -> float:
        """Seconds of computation on all devices together, without recomputation."""
        return self.chain.store_all_s * self.num_micro_batches

    @cached_property
    def ideal_s(self) -> float:
        """Step time in seconds if the devices shared this work evenly and never waited."""
        return self.store_all_s / self.num_devices

    @cached_property
    def graph(self) -> Graph:
        """The whole step as ops on streams; see `schedsim.pipelines.lower`."""
        from .lower import to_graph

        return to_graph(self)

    def message_s(self, size_bytes: int) -> float:
        """Time of one message, in seconds."""
        return 0.0 if self.link is None else self.link.time_s(size_bytes)

    def stage_work_s(self, stage: int) -> tuple[float, float]:
        """Forward and backward time of one micro-batch on `stage`, the loss in its backward."""
        layers = self.chain.stages[self.cuts[stage] : self.cuts[stage + 1]]
        loss = self.chain.loss_s if stage == self.num_stages - 1 else 0.0
        return sum(layer.forward_s for layer in layers), loss + sum(y.backward_s for y in layers)


def even_cuts(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Cuts of `num_layers` into stages that differ by at most one layer, longer stages last.

    The first stages hold the most micro-batches in flight, so they get the fewest layers.

    Raises
    ------
    InvalidWorkloadError
        There are more stages than layers.

    Examples
    --------
    >>> even_cuts(10, 4)
    (0, 2, 4, 7, 10)
    """
    if not 1 <= num_stages <= num_layers:
        raise InvalidWorkloadError(
            f"{num_layers} layers cannot be split into {num_stages} stages",
            path="cuts",
            hint=f"between 1 and {num_layers} stages",
        )
    short, longer = divmod(num_layers, num_stages)
    cuts = [0]
    for stage in range(num_stages):
        cuts.append(cuts[-1] + short + (stage >= num_stages - longer))
    return tuple(cuts)


def make_pipeline(
    chain: Chain,
    num_devices: int,
    num_micro_batches: int,
    *,
    num_chunks: int = 1,
    cuts: Sequence[int] | None = None,
    **options: Any,
) -> Pipeline:
    """A pipeline over `chain`, cut evenly unless `cuts` says where.

    Other options are fields of `Pipeline`. Without `layer_static_bytes`, the static bytes of the
    chain are shared evenly among the layers, rounded up.

    Examples
    --------
    >>> from schedsim.workloads.synthetic import uniform
    >>> make_pipeline(uniform(8), 2, 4, num_chunks=2).cuts
    (0, 2, 4, 6, 8)
    """
    num = chain.num_stages
    chosen = even_cuts(num, num_devices * num_chunks) if cuts is None else tuple(cuts)
    if chain.static_bytes:
        options.setdefault("layer_static_bytes", [-(-chain.static_bytes // num)] * num)
    return Pipeline(chain, chosen, num_devices, num_micro_batches, **options)
