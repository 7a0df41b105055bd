"""The loss of a rank that has the head: copies of the logits, forward and backward."""

from __future__ import annotations

from ..dataflow.graph import Op
from .rank_units import UnitWriter
from .training import Training


def least_loss_bytes(training: Training, logits: int) -> int:
    """Bytes of copies of the `logits`, in 16 bits, that are there at once where the loss is."""
    chunk = logits // training.loss_chunks if training.chunked_head else logits
    return logits_copies(training) * chunk


def logits_copies(training: Training) -> int:
    """How many copies of the logits, in 16 bits, are there at once where the loss is.

    A plain loss has three in single precision. A compiled loss has the logits and their gradient,
    and so has a loss in chunks at least. Megatron's has one in single precision beside the logits,
    then beside their gradient.
    """
    if training.compiled_loss or loss_parts(training) > 1:
        return 2
    return 3 if training.state == "megatron" else 6


def loss_parts(training: Training) -> int:
    """How many chunks of logits that are there at once the loss takes one after the other."""
    return 1 if training.chunked_head else training.loss_chunks


class LossWriter(UnitWriter):
    """Writes the loss of a micro-batch, from its logits in 16 bits to their gradient."""

    _named = "L before"  # the logits that a variable of the loop holds

    def _loss(self, micro: int | str, raw: str, logits: int) -> None:
        """The forward of the loss; `raw` are the logits, of so many bytes."""
        if self.training.compiled_loss:
            self._fused_loss(micro, raw, logits)
        elif self._loss_in_place:
            self._megatron_loss(micro, raw, logits)
        else:
            self._plain_loss(micro, raw, logits)

    def _loss_backward(self, micro: int | str, logits: int) -> str:
        """The gradient of the logits, by name."""
        grad = f"L grad {micro}"
        if self.training.compiled_loss:
            self._fused_backward(micro, grad, logits)
        elif self._loss_in_place:
            self._megatron_backward(micro, grad, logits)
        else:
            self._plain_backward(micro, grad, logits)
        return grad

    @property
    def _loss_in_place(self) -> bool:
        return self.training.state == "megatron" and loss_parts(self.training) == 1

    def _fused_loss(self, micro: int | str, raw: str, logits: int) -> None:
        """One kernel: statistics of each row are kept, and the logits themselves."""
        extra = 2 * logits if self.training.wide_logits else 0
        writes = {f"L rows {micro}": 8 * self.tokens}
        if extra:
            writes[f"L wide {micro}"] = extra
        moved = self.fabric.op_s(0, 0, logits + extra)
        self._add(Op(f"loss {micro}", "forward", moved, 0, (raw,), writes))
        self._hold_logits(f"L wide {micro}" if extra else raw)

    def _fused_backward(self, micro: int | str, grad: str, logits: int) -> None:
        rows, op_s = (f"L rows {micro}",), self.fabric.op_s
        wide = self.training.wide_logits
        source, between = f"L {'wide' if wide else 'raw'} {micro}", f"L wide' {micro}"
        reads, size = (*rows, source), 2 * logits if wide else logits
        target = {between: size} if wide else {grad: logits}
        self._add(Op(f"loss' {micro}", "backward", op_s(0, 0, 3 * size), 0, reads, target))
        if wide:
            moved = op_s(0, 0, size + logits)
            self._add(Op(f"wide' {micro}", "backward", moved, 0, (between,), {grad: logits}))

    def _megatron_loss(self, micro: int | str, raw: str, logits: int) -> None:
        """In one copy in single precision: a maximum, a difference, exponents, sums, a division.

        So does ``vocab_parallel_cross_entropy`` of Megatron-LM (core/tensor_parallel).
        """
        op_s, size = self.fabric.op_s, 2 * logits
        wide, chance = f"L wide {micro}", f"L chance {micro}"
        self._add(Op(f"wide {micro}", "forward", op_s(0, 0, 3 * logits), 0, (raw,), {wide: size}))
        self._add(
            Op(
                f"loss {micro}",
                "forward",
                op_s(0, 0, 8 * size),
                0,
                (wide, raw),
                {chance: size},
                in_place={chance: wide},
            )
        )
        self._hold_logits(raw)

    def _megatron_backward(self, micro: int | str, grad: str, logits: int) -> None:
        """The probabilities become their gradient in place, which is then converted."""
        op_s, size = self.fabric.op_s, 2 * logits
        chance, wide = f"L chance {micro}", f"L wide' {micro}"
        self._add(
            Op(
                f"loss' {micro}",
                "backward",
                op_s(0, 0, 2 * size),
                0,
                (chance,),
                {wide: size},
                in_place={wide: chance},
            )
        )
        moved = op_s(0, 0, size + logits)
        self._add(Op(f"wide' {micro}", "backward", moved, 0, (wide,), {grad: logits}))

    def _plain_loss(self, micro: int | str, raw: str, logits: int) -> None:
        """A log-softmax in single precision, chunk by chunk."""
        training, op_s, parts = self.training, self.fabric.op_s, loss_parts(self.training)
        size = 2 * logits // parts
        for k in range(parts):
            chunk = f"{k} {micro}" if parts > 1 else f"{micro}"
            wide, chance = f"L wide {k} {micro}", f"L chance {k} {micro}"
            moved = op_s(0, 0, 3 * logits // parts)
            self._add(Op(f"wide {chunk}", "forward", moved, 0, (raw,), {wide: size}))
            self._add(
                Op(
                    f"loss {chunk}",
                    "forward",
                    op_s(0, 0, 2 * size),
                    self._exponents(size),
                    (wide,) if training.wide_logits else (wide, raw),
                    {chance: size},
                )
            )
            self._hold_logits(wide if training.wide_logits else raw)

    def _plain_backward(self, micro: int | str, grad: str, logits: int) -> None:
        """Gradients of the logits, a chunk at a time; several are then put together."""
        parts, op_s = loss_parts(self.training), self.fabric.op_s
        size, found = 2 * logits // parts, []
        for k in reversed(range(parts)):
            chunk = f"{k} {micro}" if parts > 1 else f"{micro}"
            chance, picked, wide = (
                f"L {what} {k} {micro}" for what in ("chance", "picked", "wide'")
            )
            made = f"{grad} {k}" if parts > 1 else grad
            moved = op_s(0, 0, size)
            self._add(Op(f"picked {chunk}", "backward", moved, 0, (chance,), {picked: size}))
            self._add(
                Op(
                    f"loss' {chunk}",
                    "backward",
                    op_s(0, 0, 3 * size),
                    self._exponents(size),
                    (chance, picked),
                    {wide: size},
                )
            )
            self._add(Op(f"wide' {chunk}", "backward", moved, 0, (wide,), {made: size // 2}))
            found.append(made)
        if parts > 1:
            moved = op_s(0, 0, 2 * logits)
            self._add(Op(f"join {micro}", "backward", moved, 0, tuple(found), {grad: logits}))

    def _exponents(self, size: int) -> int:
        """Over a split vocabulary, exponents are a tensor of their own, of `size` bytes.

        A traced graph drops what they are made of in their place.
        """
        apart = self.degrees.tensor > 1 and not self.training.libraries.traced
        return size if apart else 0

    def _hold_logits(self, made: str) -> None:
        """The loop's variable lets go of the logits before, and holds these."""
        if self.training.held_logits and self.one_stream:
            self._add(Op(f"name {made}", "forward", reads=(self._named,)))
            self.results = [one for one in self.results if one != self._named]
            self.results.append(made)
            self._named = made

    def _hold_logits_before(self) -> None:
        """The logits of the step before, which the loop's variable holds."""
        if self.training.held_logits and self.one_stream:
            wide = 2 if self.training.wide_logits else 1
            size = 2 * wide * self.tokens * -(-self.model.vocab // self.degrees.tensor)
            self._add(Op("logits before", "forward", writes={self._named: size}))
