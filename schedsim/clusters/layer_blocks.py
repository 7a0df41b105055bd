"""What layers are built of: norms, products, ops on elements, messages between tensor ranks.

Sizes follow PyTorch's own kernels, with 2 bytes per element.
"""

from __future__ import annotations

from dataclasses import replace

from ..workloads.architecture import Architecture
from .degrees import Degrees
from .fabric import Fabric
from .tape import RankOp, Tape
from .training import Training

ELEMENT = 2
"""Bytes of a number in 16 bits."""
GRADIENT = "d.out"
SINGLE = 4
"""Bytes of a number in single precision."""
_TILE_ROWS = 128
"""Rows of the tiles in which grouped products are computed (CUTLASS and cuBLAS on Hopper)."""
COPY = ".copy"
"""Ends the name of what an op writes and drops when it is done."""


class BlockWriter:
    """Writes the parts of a layer to a tape, op by op."""

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
        self.part = self.whole // training.sequence_ranks(degrees)
        self.tape = Tape({"x": self.part, GRADIENT: self.part, "W": 0})
        self.weights: dict[str, int] = {}

    def norm(self, given: str, made: str) -> str:
        """A norm, whose input the backward reads; its kernel makes nothing on the way."""
        tape, size = self.tape, self.tape.sizes[given]
        forth, back = norm_moves(self.training)
        saved: tuple[str, ...] = (given,)
        writes = {made: size}
        if self.training.libraries.wide_norm and not self.training.compiled:
            # The wide input times its scale, before it is converted back.
            wide = {f"{made}.wide": 2 * size, f"{made}{COPY}": 2 * size, f"{made}.plain": size}
            writes = wide | writes
            saved = (f"{made}.wide", f"{made}.plain")

        def undo() -> None:
            d = tape.new_gradient(given)
            reads = (tape.gradient(made), *saved, "W")
            tape.emit(RankOp(f"{made}'", reads, {d: size}, moved_bytes=back * size))
            tape.give(given, d)

        tape.run(RankOp(made, (given, "W"), writes, moved_bytes=forth * size), undo)
        return made

    def product(
        self, given: str, made: str, inner: int, outer: int, tokens: int = 0, weights: int = 1
    ) -> str:
        """``made = given @ weight``, of `inner` by `outer`, already split over ranks.

        `weights` are as many matrices, for a part of the rows each.
        """
        tape, rows = self.tape, tokens or self.tokens
        flops, weight = 2.0 * rows * inner * outer, weights * inner * outer * ELEMENT
        # The last tile of each part is half empty on average; a gradient of weights has no such.
        tiled = flops * (1 + weights * _TILE_ROWS / 2 / rows) if weights > 1 else flops
        size = rows * outer * ELEMENT
        gradient = f"g.{made}"
        self.weights[gradient] = self.weights.get(gradient, 0) + weight
        low = self.training.float8
        casts = 2 if low else 1
        kernels = self._product_kernels(made, weights)

        def undo() -> None:
            d, from_out = tape.new_gradient(given), tape.gradient(made)
            moved = casts * (2 * size + 2 * tape.sizes[given]) + 2 * weight
            tape.emit(
                RankOp(
                    f"{made}'",
                    (from_out, given, "W"),
                    {d: tape.sizes[given], gradient: weight},
                    flops=0.0 if low else tiled + flops,
                    float8_flops=tiled + flops if low else 0.0,
                    moved_bytes=moved,
                    kind="product",
                    exact_sums=True,
                    kernels=2 * kernels,
                )
            )
            tape.give(given, d)

        tape.run(
            RankOp(
                made,
                (given, "W"),
                {made: size},
                flops=0.0 if low else tiled,
                float8_flops=tiled if low else 0.0,
                moved_bytes=casts * (size + tape.sizes[given]) + weight,
                kind="product",
                kernels=kernels,
            ),
            undo,
        )
        return made

    def _product_kernels(self, made: str, weights: int) -> int:
        """Kernels of a product: of PyTorch's grouped ones 1, of Transformer Engine's one each.

        Megatron computes gate and up in one product, and so queries, keys and values.
        """
        if self.training.state != "megatron":
            return 1
        return 0 if made in ("k", "v") or made.rpartition(".")[2] == "up" else weights

    def pointwise(
        self,
        given: tuple[str, ...],
        made: str,
        size: int,
        saved: tuple[str, ...] = (),
        passing: tuple[int, ...] = (),
        moved: tuple[int, int] = (0, 0),
    ) -> str:
        """An op on elements; its backward reads `saved` and gives each input a gradient.

        `passing`: bytes of tensors that it makes on the way, forward and backward. `moved`: bytes
        read and written forward and backward, if they are not those of its tensors alone.
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
                    moved_bytes=moved[1] or tape.moved(reads, writes),
                )
            )
            for one, d in zip(given, writes, strict=True):
                tape.give(one, d)

        total = moved[0] or tape.moved(given, {made: size})
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
        if ranks > 1 and self.training.whole_sequence:
            self.tape.then(lambda: self._sum_gradient(given, made))
            return given
        return given if ranks == 1 else self._message(given, made, ranks, 1, "gather")

    def scatter(self, given: str, made: str) -> str:
        """The sum over tensor-parallel ranks, each with its part of the sequence."""
        ranks = self.degrees.tensor
        if ranks > 1 and self.training.whole_sequence:
            return self._summed(given, made)
        return given if ranks == 1 else self._message(given, made, 1, ranks, "scatter")

    def _summed(self, given: str, made: str) -> str:
        """The sum over tensor-parallel ranks on each of them; all have its gradient."""
        tape, size = self.tape, self.tape.sizes[given]
        tape.run(
            RankOp(
                made,
                (given,),
                {made: size},
                stream="tensor",
                link_s=self._all_reduce_s(size),
                kind="scatter",
            ),
            lambda: tape.give(given, tape.gradient(made)),
        )
        return made

    def _sum_gradient(self, given: str, name: str) -> None:
        """Each tensor-parallel rank has a part of the gradient of `given`; they are added up."""
        tape, size = self.tape, self.tape.sizes[given]
        part, total = tape.gradient(given), f"d.{given}.sum"
        tape.emit(
            RankOp(
                f"{name}'",
                (part,),
                {total: size},
                stream="tensor",
                link_s=self._all_reduce_s(size),
                kind="scatter",
                in_place={total: part},
            )
        )
        tape.replace_gradient(given, total)

    def _all_reduce_s(self, size_bytes: int) -> float:
        ranks = self.degrees.tensor
        return self.fabric.all_reduce_s(size_bytes, ranks, ranks)

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
        if not (self.training.is_graph or self.training.regather):
            last = self.tape.forward[-1]
            reads = tuple(dict.fromkeys((*last.reads, *inputs)))
            self.tape.forward[-1] = replace(last, reads=reads)

    def _hold_weights(self) -> None:
        """Gathered weights are freed when the layer has returned (FSDP2's hook behind it)."""
        last = self.tape.forward[-1]
        self.tape.forward[-1] = replace(last, reads=(*last.reads, "W"))

    def _before(self, given: str, made: str) -> str:
        """The norm before attention or MLP, where the model has one."""
        return self.norm(given, made) if self.model.pre_norm else given

    def _after(self, branch: str, made: str) -> str:
        """The norm of a branch before it is added, where the model has one."""
        return self.norm(branch, made) if self.model.post_norm else branch


def norm_moves(training: Training) -> tuple[int, int]:
    """Bytes that a norm moves for each byte of its input, forward and backward.

    A kernel reads and writes it once; backward it reads input and gradient, an eager kernel once
    more for the gradient of the weight. Op by op and in fp32, the counts are those of PyTorch 2.6.
    """
    if training.compiled:
        return 2, 3
    return (18, 46) if training.libraries.wide_norm else (2, 5)


def nothing() -> None:
    """The backward of what another op's backward covers."""
