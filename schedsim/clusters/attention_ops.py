"""The ops of attention on one rank: products, positions, the attention itself, latents.

- Keys and values are copied for every head of their group before attention; a rank with one head
  of keys needs no copy, as PyTorch then expands it in a view.
- Attention is exact and fused (Dao et al. 2022): it keeps its inputs, its output and 4 bytes per
  row and head. Eager attention keeps its weight matrix. Half of each product is computed, as no
  token sees a later one. Where some layers have a window, each layer takes the mean of all.
- Over context-parallel ranks keys and values are gathered for each attention. Their gradients are
  reduce-scattered (Dubey et al. 2024, section 3.3.2), or with FSDP2 go round in PyTorch's ring.
"""

from __future__ import annotations

from .context_ring import ContextRing
from .layer_blocks import COPY, ELEMENT, SINGLE, BlockWriter, nothing
from .tape import RankOp

_WIDE_HEAD = 128
"""Heads wider than this run in other kernels, or with smaller tiles."""
_FLEX = 0.90, 0.85
"""FlexAttention's rate over FlashAttention-2's, forward and backward: He et al., "FlexAttention:
The Flexibility of PyTorch with the Performance of FlashAttention", pytorch.org/blog, August 2024.
"""
_FLEX_WIDE = 0.280, 0.239
"""The same on heads wider than 128: 9.80 and 28.08 ms for 8 sequences of 4,096 tokens, 16 heads of
192 and 128, causal, the fastest of its kernels on an H100 with 96 GB (what was tuned in the log of
github pytorch/torchtitan, pull request 1437). With a mask of documents the same log has 2.73 and
6.90 ms for sequences half as long, which is no less: documents save nothing here."""
_EFFICIENT = 0.5, 0.121
"""PyTorch's memory-efficient attention over FlashAttention-2, on narrow heads and on wide ones: as
fast as the first FlashAttention, and on heads wider than 128, forward and backward, 1.09 s a step
slower than FlexAttention (torchtitan, pull request 1610, the same step with both)."""


class AttentionWriter(BlockWriter):
    """Writes the first half of a layer."""

    def _attention(self, given: str) -> str:
        t, sizes, model = self.degrees.tensor, self.model.attention, self.model
        normed = self._before(given, "n1")
        whole = self.gather(normed, "n1.whole")
        if sizes.kv_rank:
            query, key, value = self._latent(whole)
        else:
            widths = (sizes.query_width, sizes.key_width)
            query = self.product(whole, "q", model.hidden, widths[0] // t)
            key = self.product(whole, "k", model.hidden, widths[1] // t)
            value = self.product(whole, "v", model.hidden, sizes.num_kv_heads * sizes.value // t)
            if sizes.head_norm:
                query, key = self.norm(query, "q.normed"), self.norm(key, "k.normed")
            times = 1 if self._repeats_view else self._repeats
            if self.training.libraries.whole_heads:
                query = self._turned_whole(query, "q.turned", 1)
                key = self._turned_whole(key, "k.turned", times)
            elif self.training.compiled and self._turns_complex:
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
        alone = num_heads == self.degrees.tensor and not training.compiled
        return training.regather or (alone and not training.libraries.whole_heads)

    @property
    def _turn_moves(self) -> tuple[int, int]:
        """Bytes that an eager turn moves for each byte of its input, forward and backward.

        As complex numbers: to fp32 (6 bytes a number), the product (8), back to 16 bits (6). In
        halves, as Qwen 3 and Gemma 3 do, in 16 bits: the product with the cosine (4), a half made
        negative (2), both put together (4), their product with the sine (4), the sum (6); backward,
        halves are put into zeros and added (counted on the dry CUDA device).
        """
        return (10, 14) if self.model.attention.head_norm else (10, 10)

    @property
    def _turns_complex(self) -> bool:
        """Whether positions are turned as complex numbers in fp32, which no compiler fuses."""
        return not (self.training.regather or self.model.attention.head_norm)

    def _turned(self, given: str, made: str) -> str:
        """Positions, turned; their backward turns back and reads nothing."""
        size, compiled = self.tape.sizes[given], self.training.compiled
        if self.training.regather or (compiled and not self._turns_complex):
            return self.pointwise((given,), made, size)
        # Complex numbers are in fp32.
        wide = 2 * size if self._turns_complex else size
        forth, back = self._turn_moves
        return self.pointwise(
            (given,), made, size, passing=(wide, wide), moved=(forth * size, back * size)
        )

    def _turned_whole(self, given: str, made: str, times: int) -> str:
        """Positions of the heads of all tensor-parallel ranks, of which this rank's are cut out.

        Each head is written `times` times before the cut. Gradients are those of this rank's heads.
        """
        tape, ranks = self.tape, self.degrees.tensor
        size, (forth, back) = tape.sizes[given], self._turn_moves
        whole, gathered, turned = ranks * size, f"{given}.whole", f"{made}.whole"
        seconds = self.fabric.gather_s(whole, ranks, ranks) + self.fabric.op_s(0, 0, 2 * whole)
        writes = {f"{gathered}{COPY}": whole, gathered: whole}
        tape.run(
            RankOp(gathered, (given,), writes, stream="tensor", link_s=seconds, kind="gather"),
            nothing,
        )
        moved = forth * whole + ((1 + times) * whole if times > 1 else 0)
        writes = {f"{turned}.{k}{COPY}": whole for k in range(2)} | {turned: times * whole}
        tape.run(RankOp(turned, (gathered,), writes, moved_bytes=moved), nothing)

        def undo() -> None:
            d = tape.new_gradient(given)
            moved = back * size + ((1 + times) * size if times > 1 else 0)
            writes = {f"{made}'.{k}{COPY}": size for k in range(2)} | {d: size}
            tape.emit(RankOp(f"{made}'", (tape.gradient(made),), writes, moved_bytes=moved))
            tape.give(given, d)

        own = times * size
        tape.run(RankOp(made, (turned,), {made: own}, moved_bytes=2 * own), undo)
        return made

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
        tape, model, training = self.tape, self.model, self.training
        sizes = model.attention
        t, c = self.degrees.tensor, self.degrees.context
        heads = sizes.num_heads // t
        rows = self.tokens * heads
        made = rows * sizes.value * ELEMENT
        # Eager attention computes the weights that a window leaves out, too.
        seen = training.seq / 2 if training.eager_attention else model.seen_tokens(training.seq)
        product = 2.0 * rows * seen
        flops = product * (sizes.head_width + sizes.value)
        # A view of one head has a gradient for each head that reads it.
        views = self._repeats if self._repeats_view and not training.regather else 1
        both = views * (tape.sizes[key] + tape.sizes[value])
        gathered = c * both if c > 1 else 0
        reads: tuple[str, ...] = (query, key, value)
        writes = {"mixed": made, "lse": 4 * rows}
        keeps: tuple[str, ...] = (query, key, value, "mixed", "lse")
        if training.eager_attention:
            self._weigh(query, key, rows, product * sizes.head_width)
            reads, writes = ("weights", "mask", value), {"mixed": made}
            keeps = (query, key, value, "weights", "mask")
        forth_s, back_s = self._context_s(query, both, made, flops)

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
                    flops=2.5 * flops * self._slower[1],
                    moved_bytes=tape.moved(keeps, grads),
                    workspace_bytes=2 * tape.sizes[query],
                    link_s=back_s,
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
                flops=(product * sizes.value if training.eager_attention else flops)
                * self._slower[0],
                moved_bytes=tape.moved(reads, writes),
                link_s=forth_s,
                kind="attention",
            ),
            undo,
        )
        return "mixed"

    @property
    def _slower(self) -> tuple[float, float]:
        """Time of the attention over that of FlashAttention-2, forward and backward.

        In FlexAttention, narrow heads are as wide as the next power of two.
        """
        libraries, sizes = self.training.libraries, self.model.attention
        wide = sizes.head_width > _WIDE_HEAD
        if libraries.efficient_attention:
            rate = _EFFICIENT[wide]
            return 1 / rate, 1 / rate
        if not libraries.flex_attention:
            return 1.0, 1.0
        if wide:
            return 1 / _FLEX_WIDE[0], 1 / _FLEX_WIDE[1]
        padded = sum(1 << (one - 1).bit_length() for one in (sizes.head_width, sizes.value))
        wider = padded / (sizes.head_width + sizes.value)
        return wider / _FLEX[0], wider / _FLEX[1]

    def _context_s(self, query: str, both: int, made: int, flops: float) -> tuple[float, float]:
        """Seconds of what context-parallel ranks exchange in an attention, forward and backward."""
        c, t, fabric = self.degrees.context, self.degrees.tensor, self.fabric
        if c == 1:
            return 0.0, 0.0
        if self.training.state != "fsdp2":
            gather_s = fabric.gather_s(c * both, c, c * t)
            return gather_s, 2 * gather_s
        sizes = self.tape.sizes[query], both, made
        ring = ContextRing(c, c * t, *sizes, compiled=self.training.compiled)
        attention_s = fabric.op_s(flops / fabric.attention_share, 0, 0)
        return ring.forward_s(fabric, attention_s), ring.backward_s(fabric, 2.5 * attention_s)

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
