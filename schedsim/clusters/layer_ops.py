"""The ops of one layer on one rank: attention, MLP, experts, and the messages between ranks.

- Between products the sequence is split over the tensor-parallel ranks; it is gathered before a
  product and reduce-scattered after (Korthikanti et al. 2022, section 4.2.2).
- Experts get equal numbers of tokens. A token is sent to its experts and back by two all-to-alls.
"""

from __future__ import annotations

from dataclasses import dataclass

from .attention_ops import AttentionWriter
from .layer_blocks import ELEMENT, GRADIENT
from .tape import RankOp


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


class LayerWriter(AttentionWriter):
    """Writes a layer to a tape, op by op."""

    def layer(self, experts: bool) -> LayerOps:
        """Attention, then a dense MLP or experts."""
        middle = self._attention("x")
        output = self._experts(middle) if experts else self._dense(middle)
        self._hold_weights()
        self.tape.finish(output, GRADIENT)
        input_gradient = self.tape.gradient("x")
        return LayerOps(
            tuple(self.tape.forward),
            tuple(self.tape.backward),
            output,
            input_gradient,
            self.weights,
            self.tape.sizes,
        )

    def _dense(self, given: str) -> str:
        normed = self._before(given, "n2")
        whole = self.gather(normed, "n2.whole")
        out = self._perceptron(whole, "", self.model.ffn_width // self.degrees.tensor, self.tokens)
        part = self.scatter(out, "m.part")
        self._held(normed, whole, "act")
        part = self._after(part, "m.normed")
        return self.add(given, part, "out", dropout=self.model.dropout)

    def _perceptron(self, given: str, name: str, width: int, tokens: int) -> str:
        hidden = self.model.hidden
        gate = self.product(given, f"{name}gate", hidden, width, tokens)
        size = self.tape.sizes[gate]
        if not self.model.gated:
            act = self.pointwise((gate,), f"{name}act", size, saved=(gate,))
        elif self.training.compiled or self.training.regather:
            up = self.product(given, f"{name}up", hidden, width, tokens)
            act = self.pointwise((gate, up), f"{name}act", size, saved=(gate, up))
        else:
            silu = self.pointwise((gate,), f"{name}silu", size, saved=(gate,))
            up = self.product(given, f"{name}up", hidden, width, tokens)
            act = self.pointwise((silu, up), f"{name}act", size, saved=(silu, up))
        return self.product(act, f"{name}down", width, hidden, tokens)

    def _experts(self, given: str) -> str:
        experts, degrees = self.model.experts, self.degrees
        assert experts is not None
        alone = degrees.whole_experts  # each tensor-parallel rank sends the tokens of its part
        normed = self._before(given, "n2")
        whole = normed if alone else self.gather(normed, "n2.whole")
        tokens = self.tokens // (degrees.tensor if alone else 1)
        scores = self.product(whole, "scores", self.model.hidden, experts.num_routed, tokens)
        # Tensor-parallel ranks split the width of every expert, expert-parallel ranks the experts.
        sent_tokens = tokens * experts.num_active
        sent = self.pointwise((whole,), "sent", sent_tokens * self.model.hidden * ELEMENT)
        ready = self._exchange(sent, "arrived")
        local = experts.num_routed // degrees.expert
        before = dict(self.weights)
        width = experts.width // degrees.expert_parts
        routed = self._perceptron(ready, "e.", width, sent_tokens)
        for one, size in self.weights.items():
            if one not in before:
                self.weights[one] = size * local
        back = self._exchange(routed, "returned")
        size = self.part if alone else self.whole
        mixed = self.pointwise((back, scores), "combined", size, saved=(back, scores))
        shared = ""
        if experts.shared_width:
            width = experts.shared_width // degrees.tensor
            read = self.gather(normed, "n2.whole") if alone else whole
            shared = self._perceptron(read, "s.", width, self.tokens)
            if alone:
                shared = self.scatter(shared, "s.part")
            mixed = self.add(mixed, shared, "m.sum")
        part = mixed if alone else self.scatter(mixed, "m.part")
        return self.add(given, self._after(part, "m.normed"), "out")

    def _exchange(self, given: str, made: str) -> str:
        """Each token to the rank that holds its expert, or back."""
        tape, ranks = self.tape, self.degrees.expert
        if ranks == 1:
            return given
        size = tape.sizes[given]
        seconds = self.fabric.all_to_all_s(size, ranks, ranks * self.degrees.expert_parts)

        def undo() -> None:
            d = tape.new_gradient(given)
            reads = (tape.gradient(made),)
            tape.emit(
                RankOp(f"{made}'", reads, {d: size}, stream="expert", link_s=seconds, kind="gather")
            )
            tape.give(given, d)

        tape.run(
            RankOp(made, (given,), {made: size}, stream="expert", link_s=seconds, kind="gather"),
            undo,
        )
        return made
