"""A compiled layer whose products run in 8 bits, with the casts that PyTorch then writes.

Before a product its input is cast to one byte an element, and the gradient of its output before the
backward products. These tensors, and the transposed copies that the gradients of weights are made
from, have sizes of their own: the allocator puts what is kept into the blocks that they leave, and
a step reserves more than without them. Sequences are gathered in one byte between tensor-parallel
ranks, and so are weights (torchao's ``enable_fsdp_float8_all_gather``). The order of ops is that of
the code that torch.compile writes, as recorded on the dry CUDA device.
"""

from __future__ import annotations

from collections.abc import Callable

from ..workloads.architecture import Architecture
from .degrees import Degrees
from .fabric import Fabric
from .layer_blocks import COPY, ELEMENT, nothing
from .layer_ops import LayerOps, LayerWriter
from .tape import RankOp
from .training import Training

LOW = 1
"""Bytes of a number in 8 bits."""


def casts_to_float8(model: Architecture, training: Training) -> bool:
    """Whether the layers of `model` are written with the casts of their products.

    Layers of experts or with latent attention are not: torchtitan leaves experts in 16 bits. Nor
    are those without a norm before their products, which would make the cast, nor those whose
    tensor-parallel ranks keep the whole sequence.
    """
    plain = model.experts is None and model.gated and not model.attention.kv_rank
    plain = plain and model.pre_norm and not training.whole_sequence
    as_compiled = training.compiled and not (training.eager_attention or training.regather)
    return training.float8 and as_compiled and plain and training.state == "fsdp2"


def gathers_float8(model: Architecture, degrees: Degrees, training: Training) -> bool:
    """Whether the weights of layers are gathered in 8 bits too.

    Not where context-parallel ranks alone share them: torchtitan then leaves the setting out
    (``parallel_dims.dp_shard_enabled`` in its ``float8.py``).
    """
    alone = degrees.fsdp == 1 and degrees.context > 1
    return casts_to_float8(model, training) and not alone


def write_layer(
    model: Architecture,
    degrees: Degrees,
    training: Training,
    tokens: int,
    fabric: Fabric,
    *,
    experts: bool,
) -> LayerOps:
    """The ops of a layer with `tokens` tokens, its MLP dense or made of experts.

    Examples
    --------
    >>> from schedsim.clusters import get_architecture, get_fabric
    >>> fabric, model = get_fabric("h100-80gb"), get_architecture("llama3-8b")
    >>> training = Training(compiled=True, float8=True)
    >>> layer = write_layer(model, Degrees(), training, 8, fabric, experts=False)
    >>> layer.sizes["n2"], layer.sizes["x"]
    (32768, 65536)
    """
    writer = Float8LayerWriter if casts_to_float8(model, training) else LayerWriter
    return writer(model, degrees, training, tokens, fabric).layer(experts)


class Float8LayerWriter(LayerWriter):
    """Writes a layer whose products read tensors of one byte an element."""

    def __init__(
        self,
        model: Architecture,
        degrees: Degrees,
        training: Training,
        tokens: int,
        fabric: Fabric,
    ) -> None:
        super().__init__(model, degrees, training, tokens, fabric)
        self._source: dict[str, str] = {}  # input of a product -> what its casts are made from
        self._wide: dict[str, int] = {}  # that input -> its bytes in 16 bits
        self._flops: dict[str, float] = {}
        self._low: set[str] = set()  # gradients that are in 8 bits as they come

    def norm(self, given: str, made: str) -> str:
        """A norm whose output is cast as it is made, once for each of queries, keys and values."""
        if made not in ("n1", "n2"):
            return super().norm(given, made)
        tape, size = self.tape, self.tape.sizes[given]
        alone = made == "n2" or self.degrees.tensor > 1
        parts = [made] if alone else [f"{made}.{one}" for one in "qkv"]

        def undo() -> None:
            d, parts = tape.new_gradient(given), tape.gradients(made)
            moved = (2 + len(parts)) * size
            tape.emit(RankOp(f"{made}'", (*parts, given, "W"), {d: size}, moved_bytes=moved))
            tape.give(given, d)

        tape.run(_casting(made, (given, "W"), dict.fromkeys(parts, size // 2), 2 * size), undo)
        self._wide[made], self._source[made] = size, given
        return made

    def gather(self, given: str, made: str) -> str:
        """The whole sequence in 8 bits; its gradient is summed over the ranks in 16."""
        ranks, tape = self.degrees.tensor, self.tape
        if ranks == 1:
            return given
        part = self._wide[given]
        whole = part * ranks

        def undo() -> None:
            d, seconds = tape.new_gradient(given), self._seconds(whole)
            parts, total = tape.gradients(made), f"d.{made}"
            moved = (1 + len(parts)) * whole
            first = {total: parts[0]}
            tape.emit(
                RankOp(f"add {total}", parts, {total: whole}, moved_bytes=moved, in_place=first)
            )
            writes = self._between(f"{made}'", whole) | {d: part}
            tape.emit(
                RankOp(
                    f"{made}'", (total,), writes, stream="tensor", link_s=seconds, kind="scatter"
                )
            )
            tape.give(given, d)

        seconds = self._seconds(whole // 2)
        writes = self._between(made, whole // 2) | {made: whole // 2}
        tape.run(
            RankOp(made, (given,), writes, stream="tensor", link_s=seconds, kind="gather"), undo
        )
        self._wide[made], self._source[made] = whole, made
        return made

    def scatter(self, given: str, made: str) -> str:
        """The sum over the ranks in 16 bits; its gradient is gathered in 8."""
        ranks, tape = self.degrees.tensor, self.tape
        if ranks == 1:
            return given
        whole = tape.sizes[given]
        part = whole // ranks

        def undo() -> None:
            d, low = tape.new_gradient(given), f"d.{made}.low"
            reads, seconds = (tape.gradient(made),), self._seconds(whole // 2)
            tape.emit(_casting(f"cast {low}", reads, {low: part // 2}, 2 * part))
            writes = self._between(f"{made}'", whole // 2) | {d: whole // 2}
            tape.emit(
                RankOp(f"{made}'", (low,), writes, stream="tensor", link_s=seconds, kind="gather")
            )
            self._low.add(d)
            tape.give(given, d)

        seconds = self._seconds(whole)
        writes = self._between(made, whole) | {made: part}
        tape.run(
            RankOp(made, (given,), writes, stream="tensor", link_s=seconds, kind="scatter"), undo
        )
        return made

    def product(
        self, given: str, made: str, inner: int, outer: int, tokens: int = 0, weights: int = 1
    ) -> str:
        """``made = given @ weight`` in 8 bits; the gradient of the weight reads turned casts."""
        tape = self.tape

        def undo() -> None:
            self._emit_casts(made, turned=True)
            self._emit_input(given, made)
            turned, size = f"{given}.turned.{made}", self._wide[given] // 2
            source = (self._source[given],)
            tape.emit(_casting(f"turn {turned}", source, {turned: size}, 3 * size))
            self._emit_weight(made, turned)

        self._run_product(given, made, (inner, outer), undo)
        return made

    def _perceptron(self, given: str, name: str, width: int, tokens: int, weights: int = 1) -> str:
        """Gate, up and down with one backward, which makes the product of gate and up again."""
        tape, hidden = self.tape, self.model.hidden
        for one in ("gate", "up"):
            self._run_product(given, one, (hidden, width), nothing)
        size = tape.sizes["gate"]
        tape.run(_casting("act", ("gate", "up"), {"act": size // 2}, 5 * size // 2), nothing)
        self._wide["act"], self._source["act"] = size, "act"

        def undo() -> None:
            self._emit_casts("down", turned=False)
            self._emit_input("act", "down")
            made = ("act.turned", "d.gate.low", "d.gate.turned", "d.up.low", "d.up.turned")
            reads, writes = (tape.gradient("act"), "gate", "up"), dict.fromkeys(made, size // 2)
            tape.emit(_casting("act'", reads, writes, 11 * size // 2))
            self._emit_input(given, "up")
            self._emit_input(given, "gate")
            d, turned = tape.gradient("down"), self._wide[given] // 2
            writes = {"d.down.turned": turned, "n2.turned": turned}
            both = (d, self._source[given])
            tape.emit(_casting("turn down", both, writes, 6 * turned))
            for one, other in (("down", "act"), ("up", "n2"), ("gate", "n2")):
                self._emit_weight(one, f"{other}.turned")

        self._run_product("act", "down", (width, hidden), undo)
        return "down"

    def _between(self, name: str, whole: int) -> dict[str, int]:
        """The copy of a whole sequence as it is cut or put together, where rows are several."""
        return {f"{name}{COPY}": whole} if self._is_cut else {}

    def _seconds(self, whole: int) -> float:
        """Of a message, and of cutting the sequence."""
        ranks = self.degrees.tensor
        return self.fabric.gather_s(whole, ranks, ranks) + self._cut_s(whole)

    def _run_product(
        self, given: str, made: str, widths: tuple[int, int], undo: Callable[[], None]
    ) -> None:
        """Append a product, and the cast of its input where nothing else made it."""
        tape, (inner, outer) = self.tape, widths
        weight = ELEMENT * inner * outer
        if given not in self._source:
            size = tape.sizes[given]
            self._wide[given], self._source[given] = size, given
            low = {f"{given}.low": size // 2}
            tape.run(_casting(f"{given}.low", (given,), low, 5 * size // 2), nothing)
        low_name = next(
            one for one in (f"{given}.{made}", f"{given}.low", given) if one in tape.sizes
        )
        rows = self._wide[given] // (ELEMENT * inner)
        size = ELEMENT * rows * outer
        self._flops[made] = 2.0 * rows * inner * outer
        self.weights[f"g.{made}"] = weight
        tape.run(
            RankOp(
                made,
                (low_name, "W"),
                {made: size},
                float8_flops=self._flops[made],
                moved_bytes=size + tape.sizes[low_name] + weight // 2,
                kind="product",
            ),
            undo,
        )

    def _emit_casts(self, made: str, *, turned: bool) -> None:
        """Cast the gradient of what a product made, and for its weight turn it as well."""
        d = self.tape.gradient(made)
        low = d in self._low
        size = self.tape.sizes[d] // (1 if low else 2)
        writes = {} if low else {f"d.{made}.low": size}
        if turned:
            writes[f"d.{made}.turned"] = size
        if writes:
            moved = (len(writes) + 4) * size
            self.tape.emit(_casting(f"cast d.{made}", (d,), writes, moved))

    def _emit_input(self, given: str, made: str) -> None:
        """The gradient of a product's input, beside a turned copy of its weight."""
        tape, d = self.tape, self.tape.new_gradient(given)
        low = tape.gradient(made) if tape.has_gradient(made) else ""
        low = low if low in self._low else f"d.{made}.low"
        weight = self.weights[f"g.{made}"] // 2
        writes = {f"{made}'.weight{COPY}": weight, d: self._wide[given]}
        moved = tape.sizes[low] + self._wide[given] + 3 * weight
        tape.emit(
            RankOp(
                f"{made}'",
                (low, "W"),
                writes,
                float8_flops=self._flops[made],
                moved_bytes=moved,
                kind="product",
                exact_sums=True,
            )
        )
        tape.give(given, d)

    def _emit_weight(self, made: str, turned: str) -> None:
        """The gradient of a product's weight, from casts that are turned."""
        tape, gradient = self.tape, f"g.{made}"
        reads, weight = (f"d.{made}.turned", turned), self.weights[f"g.{made}"]
        moved = sum(tape.sizes[one] for one in reads) + weight
        tape.emit(
            RankOp(
                f"{made}'w",
                reads,
                {gradient: weight},
                float8_flops=self._flops[made],
                moved_bytes=moved,
                kind="product",
                exact_sums=True,
            )
        )


def _casting(name: str, reads: tuple[str, ...], writes: dict[str, int], moved: int) -> RankOp:
    """A pointwise kernel that writes numbers of 8 bits; `moved` is its memory traffic in bytes."""
    return RankOp(name, reads, writes, moved_bytes=moved, element_bytes=LOW)
