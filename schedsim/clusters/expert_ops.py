"""The ops of an MLP made of experts on one rank: router, exchange of tokens, grouped products.

Experts get equal numbers of tokens. A token is sent to its experts and back; what sorts and weighs
tokens on the device is in `schedsim.clusters.token_routes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..workloads.architecture import ExpertSizes
from .attention_ops import AttentionWriter
from .layer_blocks import COPY, ELEMENT, nothing
from .tape import RankOp
from .token_routes import (
    BIAS_KERNELS,
    BIAS_MOVES,
    CAST_KERNELS,
    KERNEL_S,
    PADDING_MOVES,
    TokenRoute,
    route_of,
)

_WIDE = 2
"""Bytes of fp32 for each byte in 16 bits."""


def most_uneven(experts: ExpertSizes, ranks: int) -> float:
    """The most tokens that one of `ranks` can get, over their mean: each token goes there.

    Examples
    --------
    >>> [most_uneven(ExpertSizes(64, 6, 1408), ranks) for ranks in (1, 8, 64)]
    [1.0, 8.0, 10.666666666666666]
    """
    return min(experts.num_active, experts.num_routed // ranks) * ranks / experts.num_active


class ExpertWriter(AttentionWriter):
    """Writes an MLP, dense or of experts, to a tape, op by op."""

    def _perceptron(self, given: str, name: str, width: int, tokens: int, weights: int = 1) -> str:
        """A gated MLP, or one of two products; `weights` experts share the `tokens`."""
        hidden = self.model.hidden
        gate = self.product(given, f"{name}gate", hidden, width, tokens, weights)
        size = self.tape.sizes[gate]
        if not self.model.gated:
            act = self.pointwise((gate,), f"{name}act", size, saved=(gate,))
        elif self.training.compiled or self.training.regather:
            up = self.product(given, f"{name}up", hidden, width, tokens, weights)
            act = self.pointwise((gate, up), f"{name}act", size, saved=(gate, up))
        else:
            silu = self.pointwise((gate,), f"{name}silu", size, saved=(gate,))
            up = self.product(given, f"{name}up", hidden, width, tokens, weights)
            act = self.pointwise((silu, up), f"{name}act", size, saved=(silu, up))
        return self.product(act, f"{name}down", width, hidden, tokens, weights)

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
        local = experts.num_routed // degrees.expert
        route = route_of(self.training.libraries.routes, self.training.state)
        sent = self._sent(whole, sent_tokens * self.model.hidden * ELEMENT, route, local)
        # The rank with the most tokens is waited for.
        most = min(self.training.uneven, most_uneven(experts, degrees.expert))
        arrived = round(most * sent_tokens)
        row = self.model.hidden * ELEMENT
        beside_s = route.sending_s, route.returning_s
        ready = self._exchange(sent, "arrived", arrived * row, beside_s)
        width = experts.width // degrees.expert_parts
        routed = self._perceptron(ready, "e.", width, arrived, local)
        back = self._exchange(routed, "returned", sent_tokens * row, beside_s[::-1])
        size = self.part if alone else self.whole
        mixed = self._combined(back, scores, size, route, local)
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

    def _sent(self, given: str, size: int, route: TokenRoute, local: int) -> str:
        """Tokens in the order of their experts, a copy for each."""
        tape, made = self.tape, "sent"
        casts, padding = self._cast_kernels(local), self._padding

        def undo() -> None:
            d = tape.new_gradient(given)
            tape.emit(
                RankOp(
                    f"{made}'",
                    (tape.gradient(made),),
                    {d: tape.sizes[given]},
                    moved_bytes=round((route.sent_back + padding) * size),
                    link_s=KERNEL_S * (route.kernels_back + casts),
                )
            )
            tape.give(given, d)

        tape.run(
            RankOp(
                made,
                (given,),
                {made: size},
                moved_bytes=round((route.sent + padding) * size),
                link_s=KERNEL_S * (route.kernels + casts),
            ),
            undo,
        )
        return made

    def _cast_kernels(self, local: int) -> int:
        """Kernels that cast the rows of each expert to 8 bits, in the forward or the backward."""
        return 2 * CAST_KERNELS * local if self._casts else 0

    @property
    def _casts(self) -> bool:
        """Whether rows of experts are padded and cast to 8 bits by kernels of their own."""
        return self.training.float8 and self.training.state == "megatron"

    @property
    def _padding(self) -> int:
        """Bytes that padding moves for each byte of the routed tokens, in each direction."""
        return PADDING_MOVES if self._casts else 0

    def _combined(self, back: str, scores: str, size: int, route: TokenRoute, local: int) -> str:
        """The outputs of a token's experts, weighed by its scores and added up."""
        tape, made, experts = self.tape, "combined", self.model.experts
        assert experts is not None
        routed = tape.sizes[back]
        wide = route.wide and not self.training.compiled
        kept = f"{made}.wide" if wide else back
        forth, again = (one + self._padding for one in (route.combined, route.combined_back))
        kernels = kernels_back = 0
        if experts.bias and self.training.state == "megatron":
            forth, again = forth + BIAS_MOVES[0], again + BIAS_MOVES[1]
            kernels, kernels_back = (count * local for count in BIAS_KERNELS)

        def undo() -> None:
            grads = {tape.new_gradient(one): tape.sizes[one] for one in (back, scores)}
            moved = round(again * routed) + size
            if wide:
                self._weighing_undone(made, (kept, scores), grads, moved, batched=route.batched)
            else:
                reads = (tape.gradient(made), *(() if route.inside else (kept, scores)))
                op = RankOp(f"{made}'", reads, grads, moved_bytes=moved)
                tape.emit(replace(op, link_s=KERNEL_S * kernels_back))
            for one, d in zip((back, scores), grads, strict=True):
                tape.give(one, d)

        moved, cast = round(forth * routed) + size, (1 + _WIDE) * routed if wide else 0
        if wide:  # by itself, since a graph runs again what its backward reads alone
            tape.run(RankOp(kept, (back,), {kept: _WIDE * routed}, moved_bytes=cast), nothing)
        passing = {f"{made}.0{COPY}": _WIDE * routed} if wide else {}
        op = RankOp(made, (kept, scores), passing | {made: size}, moved_bytes=moved - cast)
        tape.run(replace(op, link_s=KERNEL_S * kernels), undo)
        return made

    def _weighing_undone(
        self,
        made: str,
        weighed: tuple[str, str],
        grads: Mapping[str, int],
        moved: int,
        *,
        batched: bool,
    ) -> None:
        """The backward of a weighing in fp32: gradients of the outputs and of their scores.

        Autograd multiplies the gradient with the outputs, then with the scores, and then adds up
        the first product. A graph drops the outputs in between; eager code has them to the end. A
        batched product adds up what it multiplies.
        """
        emit, size = self.tape.emit, self.tape.sizes[weighed[0]]
        kept, scores = weighed
        of_rows, of_scores = grads
        given, rows = self.tape.gradient(made), f"{made}'.rows"
        cast = size + grads[of_rows]
        if batched:
            writes = {rows: size, of_scores: grads[of_scores]}
            emit(RankOp(rows, (given, kept, scores), writes, moved_bytes=moved - cast))
        else:
            wide, outputs = f"{made}'.wide", f"{made}'.outputs"
            held = () if self.training.libraries.traced else (kept,)
            before = moved - 7 * size - cast
            emit(RankOp(wide, (given,), {wide: size}, moved_bytes=before))
            emit(RankOp(outputs, (wide, kept), {outputs: size}, moved_bytes=3 * size))
            emit(RankOp(rows, (wide, scores, *held), {rows: size}, moved_bytes=3 * size))
            total = {of_scores: grads[of_scores]}
            emit(RankOp(f"{made}'.sum", (outputs,), total, moved_bytes=size))
        emit(RankOp(f"{made}'", (rows,), {of_rows: grads[of_rows]}, moved_bytes=cast))

    def _exchange(self, given: str, made: str, size: int, beside_s: tuple[float, float]) -> str:
        """Each token to the ranks that hold its experts, or back: `size` bytes arrive.

        `beside_s` are taken beside it in the forward and in the backward, which goes the other way.
        """
        tape, ranks = self.tape, self.degrees.expert
        if ranks == 1:
            return given
        before = tape.sizes[given]
        seconds = self._exchange_s(max(before, size), ranks * self.degrees.expert_parts)

        def sent(name: str, read: str, writes: dict[str, int], more_s: float) -> RankOp:
            link_s = seconds + more_s
            return RankOp(name, (read,), writes, stream="expert", link_s=link_s, kind="gather")

        def undo() -> None:
            d = tape.new_gradient(given)
            tape.emit(sent(f"{made}'", tape.gradient(made), {d: before}, beside_s[1]))
            tape.give(given, d)

        tape.run(sent(made, given, {made: size}, beside_s[0]), undo)
        return made

    def _exchange_s(self, size: int, span: int) -> float:
        """Seconds in which a rank gets copies of tokens, `size` bytes if there are all of them."""
        experts, ranks = self.model.experts, self.degrees.expert
        assert experts is not None
        if self.training.dispatcher == "alltoall":
            return self.fabric.all_to_all_s(size, ranks, span)
        return self.fabric.dispatch_s(size / experts.num_active, ranks, span, experts)
