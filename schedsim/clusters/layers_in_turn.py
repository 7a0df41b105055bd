"""A lower bound on the time of a step without a pipeline, from its layers and their units.

Layers are played in the order of the ranks' streams, as `schedsim.clusters.rank_step` writes them:
each is unpacked when it begins, and gathered before that beside computation; its gradients are
packed when its backward ends, once those before are reduced, and reduced on the stream that
gathers. A layer takes the least that its ops take by themselves, so that nothing begins later than
in the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .end_seconds import EndSeconds, LayerOnce
from .layer_spans import LayerSpan


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """A layer under one policy: its seconds, its input, its kept bytes, what runs again.

    Of an offloaded layer, input and kept bytes on the device are 0, and `host_bytes` their sum. An
    input that its backward does not read counts 0 as well.
    `forward` and `backward` are spans where messages run beside computation; `computing_s` is
    computation alone, forward and backward, and `products_s` the matrix products in it.
    `peak_bytes` is what the layer's own tensors take at the peak of its backward,
    `peak_with_gradients` with those of its weights.
    """

    forward_s: float
    backward_s: float
    forward: LayerSpan
    backward: LayerSpan
    computing_s: float
    products_s: float
    input_bytes: int
    kept_bytes: int
    again: frozenset[str]
    host_bytes: int
    peak_bytes: int
    peak_with_gradients: int


@dataclass(frozen=True, slots=True)
class LayersInTurn:
    """A step of one stage that holds all layers.

    Attributes
    ----------
    layers, units
        The layers, and what gathers and reduces each.
    ends
        Of embedding and head.
    optimizer_s
        Seconds of the optimizer, which waits for the last reduction.
    gathers
        Whether parameters are gathered at all.
    stays
        Whether they stay until the last micro-batch, before which gradients are summed.
    averages
        Whether what is reduced is averaged over replicas by the stream that reduces.
    sending, all_sending
        Share of the processors that what gathers and reduces holds; that of all messages together.
    in_waves
        Whether products run as one block for each processor.
    """

    layers: Sequence[LayerCosts]
    units: Sequence[LayerOnce]
    ends: EndSeconds
    optimizer_s: float
    gathers: bool
    stays: bool
    averages: bool = False
    sending: float = 0.0
    all_sending: float = 0.0
    in_waves: bool = False

    def least_s(self, num_micro: int) -> float:
        """Seconds of `num_micro` micro-batches and the optimizer."""
        return max(self._in_turn_s(num_micro), self._beside_s(num_micro)) + self.optimizer_s

    def _beside_s(self, num_micro: int) -> float:
        """Computation, and what it loses to the kernels of messages: nothing is waited for.

        A second of a message that is waited for takes a second of the step, and one beside
        computation at least the share of the processors that it holds. A product in waves loses at
        least half of the seconds that are beside it: as much as it takes alone while it takes twice
        as long, or the rest of a message, which is once beside its first blocks, and beside whose
        last ones there may be as much of another. So messages cost least beside other computation,
        which takes as much longer as they together hold.
        """
        ends, gathers = self.ends, 1 if self.stays else num_micro
        compute = num_micro * (ends.forward_s + ends.backward_s)
        compute += num_micro * sum(layer.computing_s for layer in self.layers)
        products = num_micro * sum(layer.products_s for layer in self.layers)
        if not self.gathers:
            return compute
        compute += ends.unpack_s + ends.pack_s
        messages = ends.gather_s + ends.reduce_s
        for k, unit in enumerate(self.units):
            again = num_micro if not self.stays and k + 1 < len(self.units) else 0
            compute += (gathers + again) * unit.unpack_s + gathers * unit.pack_s
            if self.stays and num_micro > 1:
                compute += num_micro * unit.sum_s
            messages += (gathers + again) * unit.gather_s + gathers * unit.reduce_s
            messages += gathers * self._average_s(unit)
        if not self.in_waves or self.all_sending >= 1:
            return compute + self.sending * messages
        cheap = min(messages, (compute - products) / (1 - self.all_sending))
        return compute + self.sending * cheap + max(self.sending, 0.5) * (messages - cheap)

    def _in_turn_s(self, num_micro: int) -> float:
        """Both streams, where computation loses nothing to messages."""
        ends = self.ends
        link = ends.gather_s
        # Of two ends, one may be unpacked while the other is on its way.
        compute = max(ends.gather_s, ends.unpack_s)
        for micro in range(num_micro):
            begins, last = micro == 0, micro == num_micro - 1
            fresh = self.gathers and (begins or not self.stays)
            compute, link = self._forward(compute + ends.embed_s, link, fresh)
            compute += ends.forward_s - ends.embed_s + ends.backward_s - ends.embed_back_s
            compute, link = self._backward(
                compute,
                link,
                again=self.gathers and not self.stays,
                reduces=self.gathers and (last or not self.stays),
                sums=self.gathers and self.stays and num_micro > 1,
            )
            compute += ends.embed_back_s
        if self.gathers:
            compute = max(compute, link) + ends.pack_s
            link = compute + ends.reduce_s + ends.average_s
        return max(compute, link if self.gathers else 0.0)

    def _average_s(self, unit: LayerOnce) -> float:
        """Seconds that the stream that reduces averages the gradients of a layer."""
        return unit.average_s if self.averages else 0.0

    def _forward(self, compute: float, link: float, fresh: bool) -> tuple[float, float]:
        """Where both streams are after the forward of all layers."""
        given = compute
        for layer, unit in zip(self.layers, self.units, strict=True):
            if fresh:
                link += unit.gather_s
                compute = max(compute, link) + unit.unpack_s
            given = compute = _after(layer.forward, given, compute)
        return compute, link

    def _backward(
        self, compute: float, link: float, *, again: bool, reduces: bool, sums: bool
    ) -> tuple[float, float]:
        """Where both streams are after the backward; the last layer is still gathered."""
        given = compute
        last, reduced, gathered = len(self.layers) - 1, 0.0, link
        for k in reversed(range(len(self.layers))):
            unit = self.units[k]
            if again and k < last:
                compute = max(compute, gathered) + unit.unpack_s
            if again and k:
                link = gathered = link + self.units[k - 1].gather_s
            given = compute = _after(self.layers[k].backward, given, compute)
            if sums:
                compute += unit.sum_s
            if reduces:
                compute = max(compute, reduced) + unit.pack_s
                reduced = max(link, compute) + unit.reduce_s
                link = reduced + self._average_s(unit)
        return compute, link


def _after(span: LayerSpan, given: float, compute: float) -> float:
    """The end of the last computation, by the ends of its input and of computation before it."""
    return max(given + span.from_input_s, compute + span.from_compute_s)
