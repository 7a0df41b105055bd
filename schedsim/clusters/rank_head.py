"""The last norm, the head and the loss of a rank that holds them: at once, or chunk by chunk."""

from __future__ import annotations

from ..dataflow.graph import Op
from .layer_blocks import norm_moves
from .rank_ends import EndWriter
from .stages import StageParts


class HeadWriter(EndWriter):
    """Writes the ops after the last layer."""

    def _head(self, stage: StageParts, micro: int) -> None:
        op_s, link = self.fabric.op_s, self._exchange_s if self._splits_sequence else 0.0
        x, n = f"A x {stage.layers.stop} {micro}", f"A final {micro}"
        self._add(
            Op(
                f"norm {micro}",
                "forward",
                op_s(0, 0, norm_moves(self.training)[0] * self.part) + link,
                0,
                (x, *self._end_reads("head")),
                self._passing(f"final {micro}") | self._wide_norm(micro) | {n: self.whole},
            )
        )
        if self.training.chunked_head:
            self._head_in_chunks(micro, n)
            return
        self._loss(micro, self._logits(micro, n, 1), self._logits_bytes(1))

    def _head_backward(self, micro: int) -> None:
        n, final = f"A final {micro}", f"D final {micro}"
        if not self.training.chunked_head:
            grad = self._loss_backward(micro, self._logits_bytes(1))
            self._logits_backward(micro, grad, n, 1, final)
        stage = next(one for one in self.stages.values() if one.head)
        x = f"A x {stage.layers.stop}"
        self._add(
            Op(
                f"norm' {micro}",
                "backward",
                self.fabric.op_s(0, 0, norm_moves(self.training)[1] * self.part) + self._exchange_s,
                0,
                (final, *(self._wide_norm(micro) or (f"{x} {micro}",)), *self._end_reads("head")),
                self._passing(f"final' {micro}") | {f"D {x[2:]} {micro}": self.part},
            )
        )
        if not self.training.chunked_head:
            self._keep_end("head", micro)

    def _head_in_chunks(self, micro: int, n: str) -> None:
        """Head and loss forward and backward of one chunk of the sequence after the other.

        So does torchtitan since April 2026 (``ChunkedCELoss``): gradients of what the head reads
        are put together in fp32, and with FSDP2 those of its matrix are added up in fp32.
        """
        parts, op_s = self.training.loss_chunks, self.fabric.op_s
        source = n
        if self.training.micro_batch(self.degrees) > 1:  # parts of several rows are copied
            source = f"{n} chunks"
            moved = op_s(0, 0, 2 * self.whole)
            self._add(Op(f"chunks {micro}", "forward", moved, 0, (n,), {source: self.whole}))
        rows = ""
        for k in range(parts):
            label = f"{k} {micro}"
            logits = self._logits_bytes(parts)
            self._loss(label, self._logits(label, source, parts), logits)
            grad, chunk = self._loss_backward(label, logits), f"D final {label}"
            self._logits_backward(label, grad, source, parts, chunk)
            together = f"D rows {label}"
            reads = (chunk, rows) if rows else (chunk,)
            self._add(
                Op(
                    f"collect {label}",
                    "backward",
                    op_s(0, 0, 3 * self.whole // parts),
                    0,
                    reads,
                    {together: 2 * self.whole},
                    in_place={together: rows} if rows else {},
                )
            )
            rows = together
            self._keep_chunk(micro, k)
        moved = op_s(0, 0, 3 * self.whole)
        made = {f"D final {micro}": self.whole}
        self._add(Op(f"convert {micro}", "backward", moved, 0, (rows, n), made))

    def _keep_chunk(self, micro: int, k: int) -> None:
        """Keep the gradient of the head's matrix from one chunk, or add it to the others."""
        made = self._end_gradient("head", f"{k} {micro}")
        if self.training.state == "bf16":
            if micro == k == 0 and not self.training.optimizer_in_backward:
                self.results += made
            return
        if self.training.state == "megatron":
            return
        (name, size), total = *made.items(), f"G sum head {k} {micro}"
        before = self._accumulated.get("head")
        self._add(
            Op(
                f"sum head {k} {micro}",
                "backward",
                self.fabric.op_s(0, 0, 5 * size if before else 3 * size),
                0,
                (name, before) if before else (name,),
                {total: 2 * size},
                in_place={total: before} if before else {},
            )
        )
        self._accumulated["head"] = total

    def _logits_bytes(self, parts: int) -> int:
        """Bytes of the logits of one of `parts` chunks, in 16 bits."""
        return self.tokens * -(-self.model.vocab // self.degrees.tensor) * 2 // parts

    def _logits_flops(self, parts: int) -> float:
        return float(self._logits_bytes(parts)) * self.model.hidden

    def _logits(self, label: int | str, n: str, parts: int) -> str:
        """The logits of a chunk, by name."""
        op_s, logits, weights = self.fabric.op_s, self._logits_bytes(parts), self._end_reads("head")
        raw = f"L raw {label}"
        first = f"L plain {label}" if self.model.logit_cap else raw
        taken_s = op_s(self._logits_flops(parts), 0, logits + 2 * self.whole // parts)
        self._add(Op(f"logits {label}", "forward", taken_s, 0, (n, *weights), {first: logits}))
        if self.model.logit_cap:
            # A division, a tanh that keeps its output, and a product.
            made = {f"L tanh {label}": logits, raw: logits}
            self._add(Op(f"cap {label}", "forward", op_s(0, 0, 6 * logits), 0, (first,), made))
        return raw

    def _logits_backward(self, label: int | str, grad: str, n: str, parts: int, made: str) -> None:
        """The gradients of what the head reads, `made`, and of its matrix."""
        op_s, logits = self.fabric.op_s, self._logits_bytes(parts)
        if self.model.logit_cap:
            capped, grad = grad, f"L grad plain {label}"
            moved, reads = op_s(0, 0, 7 * logits), (capped, f"L tanh {label}")
            self._add(Op(f"cap' {label}", "backward", moved, 0, reads, {grad: logits}))
        part = self.whole // parts
        self._add(
            Op(
                f"logits' {label}",
                "backward",
                op_s(2 * self._logits_flops(parts), 0, 2 * logits + 3 * part),
                0,
                (grad, n, *self._end_reads("head")),
                {made: part} | self._end_gradient("head", label),
            )
        )

    def _wide_norm(self, micro: int) -> dict[str, int]:
        """What the last norm keeps where norms convert their input, as those of layers do."""
        if not self.training.libraries.wide_norm:
            return {}
        return {f"A final.wide {micro}": 2 * self.part, f"A final.plain {micro}": self.part}
