"""The ops of one layer on one rank: attention, MLP, experts, and the messages between ranks.

Sizes follow PyTorch's own kernels, with 2 bytes per element:

- Between products the sequence is split over the tensor-parallel ranks; it is gathered before a
  product and reduce-scattered after (Korthikanti et al. 2022, section 4.2.2).
- Keys and values are copied for every head of their group before attention; a rank with one head
  of keys needs no copy, as PyTorch then expands it in a view.
- Attention is exact and fused (Dao et al. 2022): it keeps its inputs, its output and 4 bytes per
  row and head. Eager attention keeps its weight matrix. Half of each product is computed, as no
  token sees a later one.
- Over context-parallel ranks keys and values are gathered for each attention, and their gradients
  reduce-scattered (Dubey et al. 2024, section 3.3.2).
- Experts get equal numbers of tokens. A token is sent to its experts and back by two all-to-alls.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..workloads.architecture import Architecture
from .degrees import Degrees
from .fabric import Fabric
from .tape import RankOp, Tape
from .training import Training

ELEMENT = 2
"""Bytes of a number in 16 bits."""
_GRADIENT = "d.out"
SINGLE = 4
"""Bytes of a number in single precision."""
COPY = ".copy"
"""Ends the name of what an op writes and drops when it is done."""


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


class LayerWriter:
    """Writes a layer to a tape, op by op."""

    def __init__(
        self,
        model: Architecture,
        degrees: Degrees,
        training: Training,
        tokens: int,
        fabric: Fabric,
    ) -> None:
        self.model = model
        self.degrees = degrees
        self.training = training
        self.tokens = tokens
        self.fabric = fabric
        self.whole = tokens * model.hidden * ELEMENT
        self.part = self.whole // degrees.tensor
        self.tape = Tape({"x": self.part, _GRADIENT: self.part, "W": 0})
        self.weights: dict[str, int] = {}

    def layer(self, experts: bool) -> LayerOps:
        """Attention, then a dense MLP or experts."""
        middle = self._attention("x")
        output = self._experts(middle) if experts else self._dense(middle)
        self._hold_weights()
        self.tape.finish(output, _GRADIENT)
        input_gradient = self.tape.gradient("x")
        return LayerOps(
            tuple(self.tape.forward),
            tuple(self.tape.backward),
            output,
            input_gradient,
            self.weights,
            self.tape.sizes,
        )

    # Building blocks of layers.

    def norm(self, given: str, made: str) -> str:
        """A norm, whose input the backward reads; its kernel makes nothing on the way."""
        tape, size = self.tape, self.tape.sizes[given]
        passes = 1 if self.training.compiled else 3
        saved: tuple[str, ...] = (given,)
        writes = {made: size}
        if self.training.wide_norm and not self.training.compiled:
            # The wide input times its scale, before it is converted back.
            wide = {f"{made}.wide": 2 * size, f"{made}{COPY}": 2 * size, f"{made}.plain": size}
            writes = wide | writes
            saved = (f"{made}.wide", f"{made}.plain")

        def undo() -> None:
            d = tape.new_gradient(given)
            reads = (tape.gradient(made), *saved, "W")
            tape.emit(RankOp(f"{made}'", reads, {d: size}, moved_bytes=3 * size * passes))
            tape.give(given, d)

        tape.run(RankOp(made, (given, "W"), writes, moved_bytes=2 * size * passes), undo)
        return made

    def product(self, given: str, made: str, inner: int, outer: int, tokens: int = 0) -> str:
        """``made = given @ weight``, of `inner` by `outer`, already split over ranks."""
        tape, rows = self.tape, tokens or self.tokens
        flops, weight = 2.0 * rows * inner * outer, inner * outer * ELEMENT
        size = rows * outer * ELEMENT
        gradient = f"g.{made}"
        self.weights[gradient] = self.weights.get(gradient, 0) + weight
        low = self.training.float8
        casts = 2 if low else 1

        def undo() -> None:
            d, from_out = tape.new_gradient(given), tape.gradient(made)
            moved = casts * (2 * size + 2 * tape.sizes[given]) + 2 * weight
            tape.emit(
                RankOp(
                    f"{made}'",
                    (from_out, given, "W"),
                    {d: tape.sizes[given], gradient: weight},
                    flops=0.0 if low else 2 * flops,
                    float8_flops=2 * flops if low else 0.0,
                    moved_bytes=moved,
                    kind="product",
                )
            )
            tape.give(given, d)

        tape.run(
            RankOp(
                made,
                (given, "W"),
                {made: size},
                flops=0.0 if low else flops,
                float8_flops=flops if low else 0.0,
                moved_bytes=casts * (size + tape.sizes[given]) + weight,
                kind="product",
            ),
            undo,
        )
        return made

    def pointwise(
        self,
        given: tuple[str, ...],
        made: str,
        size: int,
        saved: tuple[str, ...] = (),
        passing: tuple[int, ...] = (),
        moved: int = 0,
    ) -> str:
        """An op on elements; its backward reads `saved` and gives each input a gradient.

        `passing`: bytes of tensors that it makes on the way, forward and backward. `moved`: bytes
        read and written in each direction, if they are not those of its tensors alone.
        """
        tape = self.tape

        def dropped(name: str) -> dict[str, int]:
            return {f"{name}.{k}{COPY}": wide for k, wide in enumerate(passing)}

        def undo() -> None:
            reads = (tape.gradient(made), *saved)
            writes = {tape.new_gradient(one): tape.sizes[one] for one in given}
            tape.emit(
                RankOp(
                    f"{made}'",
                    tuple(dict.fromkeys(reads)),
                    dropped(f"{made}'") | writes,
                    moved_bytes=moved or tape.moved(reads, writes),
                )
            )
            for one, d in zip(given, writes, strict=True):
                tape.give(one, d)

        total = moved or tape.moved(given, {made: size})
        tape.run(RankOp(made, given, dropped(made) | {made: size}, moved_bytes=total), undo)
        return made

    def add(self, one: str, other: str, made: str, *, dropout: bool = False) -> str:
        """A sum: both inputs get its gradient; only a dropout makes a new tensor, its mask."""
        tape, size = self.tape, self.tape.sizes[one]
        mask = f"{made}.mask"

        def undo() -> None:
            gradient = tape.gradient(made)
            tape.give(one, gradient)
            if not dropout:
                tape.give(other, gradient)
                return
            d = tape.new_gradient(other)
            reads, writes = (gradient, mask), {d: size}
            tape.emit(RankOp(f"{made}'", reads, writes, moved_bytes=tape.moved(reads, writes)))
            tape.give(other, d)

        writes = {made: size} | ({mask: size // ELEMENT} if dropout else {})
        tape.run(RankOp(made, (one, other), writes, moved_bytes=3 * size), undo)
        return made

    def gather(self, given: str, made: str) -> str:
        """The whole sequence from its parts on the tensor-parallel ranks."""
        ranks = self.degrees.tensor
        return given if ranks == 1 else self._message(given, made, ranks, 1, "gather")

    def scatter(self, given: str, made: str) -> str:
        """The sum over tensor-parallel ranks, each with its part of the sequence."""
        ranks = self.degrees.tensor
        return given if ranks == 1 else self._message(given, made, 1, ranks, "scatter")

    @property
    def _is_cut(self) -> bool:
        """Whether parts of the sequence are copied: those of several rows do not lie together.

        Megatron's tensors have the sequence first, so that they do.
        """
        apart = self.training.micro_batch(self.degrees) > 1 and self.training.state != "megatron"
        return apart and not self.training.async_tensor

    def _cut_s(self, whole_bytes: int) -> float:
        """Seconds in which a sequence is cut into its parts, or put together."""
        return self.fabric.op_s(0, 0, 2 * whole_bytes) if self._is_cut else 0.0

    def _message(self, given: str, made: str, times: int, parts: int, kind: str) -> str:
        tape, ranks = self.tape, self.degrees.tensor
        before = tape.sizes[given]
        after = before * times // parts
        whole = max(before, after)
        seconds = self.fabric.gather_s(whole, ranks, ranks) + self._cut_s(whole)

        def copied(name: str) -> dict[str, int]:
            return {f"{name}{COPY}": whole} if self._is_cut else {}

        def undo() -> None:
            d = tape.new_gradient(given)
            reads = (tape.gradient(made),)
            back = "scatter" if kind == "gather" else "gather"
            tape.emit(
                RankOp(
                    f"{made}'",
                    reads,
                    copied(f"{made}'") | {d: before},
                    stream="tensor",
                    link_s=seconds,
                    kind=back,
                )
            )
            tape.give(given, d)

        tape.run(
            RankOp(
                made,
                (given,),
                copied(made) | {made: after},
                stream="tensor",
                link_s=seconds,
                kind=kind,
            ),
            undo,
        )
        return made

    def _held(self, *inputs: str) -> None:
        """Inputs and variables of eager modules are held until the last op inside is done."""
        if not (self.training.compiled or self.training.regather):
            last = self.tape.forward[-1]
            reads = tuple(dict.fromkeys((*last.reads, *inputs)))
            self.tape.forward[-1] = replace(last, reads=reads)

    def _hold_weights(self) -> None:
        """Gathered weights are freed when the layer has returned (FSDP2's hook behind it)."""
        last = self.tape.forward[-1]
        self.tape.forward[-1] = replace(last, reads=(*last.reads, "W"))

    def _after(self, branch: str, made: str) -> str:
        """The norm of a branch before it is added, where the model has one."""
        return self.norm(branch, made) if self.model.post_norm else branch

    # Attention.

    def _attention(self, given: str) -> str:
        t, sizes, model = self.degrees.tensor, self.model.attention, self.model
        normed = self.norm(given, "n1")
        whole = self.gather(normed, "n1.whole")
        if sizes.kv_rank:
            query, key, value = self._latent(whole)
        else:
            widths = (sizes.query_width, sizes.num_kv_heads * sizes.head_width)
            query = self.product(whole, "q", model.hidden, widths[0] // t)
            key = self.product(whole, "k", model.hidden, widths[1] // t)
            value = self.product(whole, "v", model.hidden, sizes.num_kv_heads * sizes.value // t)
            if sizes.head_norm:
                query, key = self.norm(query, "q.normed"), self.norm(key, "k.normed")
            times = 1 if self._repeats_view else self._repeats
            if self.training.compiled and self._turns_complex:
                query, key = self._turned_pair(query, key, times)
            else:
                query = self._turned(query, "q.turned")
                key = self._repeated(self._turned(key, "k.turned"), times)
            value = self._repeated(value, times)
        mixed = self._mix(query, key, value)
        out = self.product(mixed, "o", sizes.output_width // t, model.hidden)
        part = self.scatter(out, "o.part")
        self._held(normed, whole, query, key, value, mixed)
        part = self._after(part, "o.normed")
        return self.add(given, part, "h", dropout=model.dropout)

    @property
    def _repeats(self) -> int:
        """How many heads of queries read one head of keys."""
        sizes = self.model.attention
        return 1 if sizes.kv_rank else sizes.num_heads // sizes.num_kv_heads

    @property
    def _repeats_view(self) -> bool:
        """Whether attention reads keys and values without a copy for every head.

        Megatron's kernels do. An eager expansion of a single head has no other layout than that
        head's, so that its reshape is a view.
        """
        training, num_heads = self.training, self.model.attention.num_kv_heads
        return training.regather or (num_heads == self.degrees.tensor and not training.compiled)

    @property
    def _turn_moves(self) -> int:
        """Bytes that an eager turn moves for each byte of its input, in one direction.

        As complex numbers: to fp32 (6 bytes a number), the product (8), back to 16 bits (6). In
        halves, as Qwen 3 and Gemma 3 do: the product with the cosine (6), the halves exchanged (6),
        their product with the sine (6), the sum (12), back to 16 bits (6).
        """
        return 18 if self.model.attention.head_norm else 10

    @property
    def _turns_complex(self) -> bool:
        """Whether positions are turned as complex numbers in fp32, which no compiler fuses."""
        return not (self.training.regather or self.model.attention.head_norm)

    def _turned(self, given: str, made: str) -> str:
        """Positions, turned in fp32; their backward turns back and reads nothing."""
        size, compiled = self.tape.sizes[given], self.training.compiled
        if self.training.regather or (compiled and not self._turns_complex):
            return self.pointwise((given,), made, size)
        return self.pointwise(
            (given,), made, size, passing=(2 * size, 2 * size), moved=self._turn_moves * size
        )

    def _repeated(self, given: str, times: int) -> str:
        """A copy for each head of queries that reads the same head of keys or values."""
        if times == 1:
            return given
        return self.pointwise((given,), f"{given}.wide", times * self.tape.sizes[given])

    def _turned_pair(self, query: str, key: str, times: int) -> tuple[str, str]:
        """Queries and keys, turned by compiled code: both as complex numbers, then in 16 bits.

        Keys are written `times` times as they are converted back.
        """
        for one in (query, key):
            size = self.tape.sizes[one]
            single, turned = f"{one}.single", f"{one}.complex"
            self.tape.run(
                RankOp(
                    single, (one,), {single: 2 * size}, moved_bytes=3 * size, element_bytes=SINGLE
                ),
                nothing,
            )
            self.tape.run(self._turn(single, turned, 2 * size), nothing)
        return (
            self._converted(query, "q.turned", 1),
            self._converted(key, "k.turned.wide" if times > 1 else "k.turned", times),
        )

    def _turn(self, given: str, made: str, size: int) -> RankOp:
        """A product of complex numbers: a kernel of its own."""
        return RankOp(
            made, (given,), {made: size}, moved_bytes=2 * size, kind="complex", element_bytes=8
        )

    def _converted(self, given: str, made: str, times: int) -> str:
        """``given.complex`` in 16 bits; the backward turns back, as complex numbers too."""
        tape, size = self.tape, self.tape.sizes[given]

        def undo() -> None:
            d = tape.new_gradient(given)
            single, turned = f"d.{given}.single", f"d.{given}.complex"
            reads, back = (tape.gradient(made),), (2 + times) * size
            writes = {single: 2 * size}
            tape.emit(RankOp(single, reads, writes, moved_bytes=back, element_bytes=SINGLE))
            tape.emit(self._turn(single, turned, 2 * size))
            tape.emit(RankOp(f"{made}'", (turned,), {d: size}, moved_bytes=3 * size))
            tape.give(given, d)

        source, moved = (f"{given}.complex",), (2 + times) * size
        tape.run(RankOp(made, source, {made: times * size}, moved_bytes=moved), undo)
        return made

    def _latent(self, whole: str) -> tuple[str, str, str]:
        """Queries, keys and values through narrow latents, whole on every rank."""
        t, sizes, hidden = self.degrees.tensor, self.model.attention, self.model.hidden
        heads = sizes.num_heads // t
        plain = sizes.head_width - sizes.rope_width
        query = whole
        inner = hidden
        if sizes.query_rank:
            query = self.norm(self.product(whole, "q.down", hidden, sizes.query_rank), "q.norm")
            inner = sizes.query_rank
        query = self.product(query, "q", inner, heads * sizes.head_width)
        down = self.product(whole, "kv.down", hidden, sizes.kv_rank + sizes.rope_width)
        narrow = self.norm(down, "kv.norm")
        wide = self.product(narrow, "kv", sizes.kv_rank, heads * (plain + sizes.value))
        key = self.pointwise((wide,), "k.turned", self.tokens * heads * sizes.head_width * ELEMENT)
        value = self.pointwise((wide,), "v.plain", self.tokens * heads * sizes.value * ELEMENT)
        return self._turned(query, "q.turned"), key, value

    def _mix(self, query: str, key: str, value: str) -> str:
        tape, sizes, training = self.tape, self.model.attention, self.training
        t, c = self.degrees.tensor, self.degrees.context
        heads = sizes.num_heads // t
        rows = self.tokens * heads
        made = rows * sizes.value * ELEMENT
        # Each row sees half of the sequence on average.
        seen = training.seq / 2
        product = 2.0 * rows * seen
        flops = product * (sizes.head_width + sizes.value)
        # A view of one head has a gradient for each head that reads it.
        views = self._repeats if self._repeats_view and not training.regather else 1
        both = views * (tape.sizes[key] + tape.sizes[value])
        gathered = c * both if c > 1 else 0
        seconds = self.fabric.gather_s(gathered, c, c * t)
        reads: tuple[str, ...] = (query, key, value)
        writes = {"mixed": made, "lse": 4 * rows}
        keeps: tuple[str, ...] = (query, key, value, "mixed", "lse")
        if training.eager_attention:
            self._weigh(query, key, rows, product * sizes.head_width)
            reads, writes = ("weights", "mask", value), {"mixed": made}
            keeps = (query, key, value, "weights", "mask")

        def undo() -> None:
            grads = {tape.new_gradient(query): tape.sizes[query]}
            for one in (key, value):
                name = f"d.{one}.wide" if views > 1 else tape.new_gradient(one)
                grads[name] = views * tape.sizes[one]
            # Gathered keys and values are dropped after the op, as no other op reads them.
            extra = {"kv.whole'": gathered} if gathered else {}
            # Gradients of queries are summed in fp32.
            tape.emit(
                RankOp(
                    "mixed'",
                    (tape.gradient("mixed"), *keeps),
                    grads | extra,
                    flops=2.5 * flops,
                    moved_bytes=tape.moved(keeps, grads),
                    workspace_bytes=2 * tape.sizes[query],
                    link_s=2 * seconds,
                    kind="attention",
                )
            )
            for one, wide in zip((query, key, value), grads, strict=True):
                d = wide
                if views > 1 and one != query:
                    d, size = tape.new_gradient(one), tape.sizes[one]
                    tape.emit(
                        RankOp(f"{one}.wide'", (wide,), {d: size}, moved_bytes=(views + 1) * size)
                    )
                tape.give(one, d)

        tape.run(
            RankOp(
                "mixed",
                reads,
                writes | ({"kv.whole": gathered} if gathered else {}),
                flops=product * sizes.value if training.eager_attention else flops,
                moved_bytes=tape.moved(reads, writes),
                link_s=seconds,
                kind="attention",
            ),
            undo,
        )
        return "mixed"

    def _weigh(self, query: str, key: str, rows: int, flops: float) -> None:
        """Scores, their softmax, dropout: 5 bytes for each pair of tokens of each head."""
        scores = rows * self.training.seq * ELEMENT
        self.tape.run(
            RankOp(
                "weights",
                (query, key),
                {"weights": 2 * scores, "mask": scores // 2},
                flops=flops,
                moved_bytes=4 * scores,
                kind="core",
            ),
            lambda: None,
        )

    # Multi-layer perceptrons.

    def _dense(self, given: str) -> str:
        normed = self.norm(given, "n2")
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
        whole = self.gather(self.norm(given, "n2"), "n2.whole")
        scores = self.product(whole, "scores", self.model.hidden, experts.num_routed)
        # Tensor-parallel ranks split the width of every expert, expert-parallel ranks the experts.
        sent_tokens = self.tokens * experts.num_active
        sent = self.pointwise((whole,), "sent", sent_tokens * self.model.hidden * ELEMENT)
        ready = self._exchange(sent, "arrived")
        local = experts.num_routed // degrees.expert
        before = dict(self.weights)
        routed = self._perceptron(ready, "e.", experts.width // degrees.tensor, sent_tokens)
        for one, size in self.weights.items():
            if one not in before:
                self.weights[one] = size * local
        back = self._exchange(routed, "returned")
        mixed = self.pointwise((back, scores), "combined", self.whole, saved=(back, scores))
        if experts.shared_width:
            width = experts.shared_width // degrees.tensor
            mixed = self.add(mixed, self._perceptron(whole, "s.", width, self.tokens), "m.sum")
        part = self._after(self.scatter(mixed, "m.part"), "m.normed")
        return self.add(given, part, "out")

    def _exchange(self, given: str, made: str) -> str:
        """Each token to the rank that holds its expert, or back."""
        tape, ranks = self.tape, self.degrees.expert
        if ranks == 1:
            return given
        size = tape.sizes[given]
        seconds = self.fabric.all_to_all_s(size, ranks, ranks * self.degrees.tensor)

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


def nothing() -> None:
    """The backward of what another op's backward covers."""
