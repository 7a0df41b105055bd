"""The ops of one layer on one rank: attention, MLP, experts, and the messages between ranks.

- Between products the sequence is split over the tensor-parallel ranks; it is gathered before a
  product and reduce-scattered after (Korthikanti et al. 2022, section 4.2.2).
- Experts are in `schedsim.clusters.expert_ops`.
"""

from __future__ import annotations

from dataclasses import dataclass

from .expert_ops import ExpertWriter
from .hidden_exchange import with_hidden_exchange
from .host_launches import as_launched
from .layer_blocks import GRADIENT
from .overlapped_tensor import with_overlapped_tensor
from .tape import RankOp
from .token_routes import route_of


@dataclass(frozen=True, slots=True)
class LayerOps:
    """A layer on a rank.

    Attributes
    ----------
    forward, backward
        Ops in order. They read ``x``, the layer's input, ``W``, its gathered weights, and
        ``d.out``.
    output, input_gradient
        Names of the tensors passed to the next layer, and back to the layer before.
    weights
        Bytes of each gathered weight, in 2 bytes an element: gradient ``g.NAME`` -> bytes.
    kept
        Recomputation policy -> tensors of the forward that are kept for the backward.
    """

    forward: tuple[RankOp, ...]
    backward: tuple[RankOp, ...]
    output: str
    input_gradient: str
    weights: dict[str, int]
    sizes: dict[str, int]


class LayerWriter(ExpertWriter):
    """Writes a layer to a tape, op by op."""

    def layer(self, experts: bool) -> LayerOps:
        """Attention, then a dense MLP or experts."""
        middle = self._attention("x")
        output = self._experts(middle) if experts else self._dense(middle)
        self._hold_weights()
        self.tape.finish(output, GRADIENT)
        input_gradient = self.tape.gradient("x")
        forward, backward = tuple(self.tape.forward), tuple(self.tape.backward)
        if self._hides_exchange:
            route = route_of(self.training.libraries.routes, self.training.state)
            forward, backward = with_hidden_exchange(
                forward, backward, self.fabric, route.sending_processors
            )
        if self.training.overlap_tensor:
            ranks, fabric = self.degrees.tensor, self.fabric
            forward = with_overlapped_tensor(forward, fabric, ranks, backward=False)
            backward = with_overlapped_tensor(backward, fabric, ranks, backward=True)
        forward = as_launched(forward, self.training, self.fabric)
        backward = as_launched(backward, self.training, self.fabric)
        return LayerOps(forward, backward, output, input_gradient, self.weights, self.tape.sizes)

    @property
    def _hides_exchange(self) -> bool:
        """Whether there is another micro-batch to exchange tokens beside."""
        return self.training.hidden_exchange and self.training.micro_batches(self.degrees) > 1

    def _dense(self, given: str) -> str:
        normed = self._before(given, "n2")
        whole = self.gather(normed, "n2.whole")
        out = self._perceptron(whole, "", self.model.ffn_width // self.degrees.tensor, self.tokens)
        part = self.scatter(out, "m.part")
        self._held(normed, whole, "act")
        part = self._after(part, "m.normed")
        return self.add(given, part, "out", dropout=self.model.dropout)
