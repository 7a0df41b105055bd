"""The embedding of a rank that holds it, gradients of both ends, and the end of its step."""

from __future__ import annotations

from functools import cached_property

from ..dataflow.graph import Op
from .rank_loss import LossWriter


class EndWriter(LossWriter):
    """Writes the ops before the first layer, and those at the end of a step."""

    _earlier: tuple[str, ...] = ()  # outputs of micro-batches that are not played

    def _ends(self, which: str) -> str:
        names = {unit for stage in self.stages.values() for unit in self._end_units(stage)}
        return "ends" if "ends" in names else which

    def _end_reads(self, which: str) -> tuple[str, ...]:
        return (f"W {self._ends(which)}",) if self._gathers else ()

    def _passing(self, name: str) -> dict[str, int]:
        """The whole sequence beside its part, and once more as it is cut or put together."""
        copies = self.training.micro_batch(self.degrees) > 1 and not self.training.async_tensor
        return {f"A {name} copy": self.whole} if self._splits_sequence and copies else {}

    @property
    def _splits_sequence(self) -> bool:
        return self.training.sequence_ranks(self.degrees) > 1

    @property
    def _exchange_s(self) -> float:
        """Seconds in which parts of a sequence become whole; or whole ones are added up."""
        ranks = self.degrees.tensor
        times = 2 if self.training.whole_sequence else 1
        return times * self.fabric.gather_s(self.whole, ranks, ranks)

    def _embed(self, micro: int) -> None:
        self._add(
            Op(
                f"embed {micro}",
                "forward",
                self.fabric.op_s(0, 0, 2 * self.part) + self._exchange_s,
                0,
                self._end_reads("embedding"),
                ({f"A rows {micro}": self.whole} if self._splits_sequence else {})
                | self._passing(f"rows {micro}")
                | {f"A x 0 {micro}": self.part},
            )
        )

    def _end_gradient(self, which: str, micro: int | str) -> dict[str, int]:
        """Where the gradient of an end's matrix is written; embedding and head may share it."""
        if self.training.state == "megatron":
            return {}
        return {f"G {which} {micro}": 2 * -(-self._end_size // self.degrees.tensor)}

    @property
    def _end_size(self) -> int:
        return self.model.vocab * self.model.hidden

    @property
    def _sums_whole_embedding(self) -> bool:
        """Whether the embedding's gradient is summed over micro-batches as it is made: whole.

        Where the vocabulary is split, a DTensor writes the gradient of the whole matrix on each
        rank. FSDP2 cuts it when it reduces it.
        """
        return self._sums_in_pipeline and self.degrees.tensor > 1 and self.num_micro > 1

    def _keep_end(self, which: str, micro: int) -> None:
        """Keep, add up or reduce the gradient of an end's matrix."""
        state, made = self.training.state, self._end_gradient(which, micro)
        if state == "megatron":
            return
        if state == "bf16":
            if micro == 0 and not self.training.optimizer_in_backward:
                self.results += made
            return
        name = next(iter(made))
        if self.num_micro > 1:
            before, total = self._accumulated.get(which), f"G sum {which} {micro}"
            reads = (name, before) if before else (name,)
            in_place = {total: before} if before else {}
            size = 2 * made[name]
            if which == "embedding" and self._sums_whole_embedding:
                size = 4 * self._end_size
            self._add(
                Op(
                    f"sum {which} {micro}",
                    "backward",
                    0.0,
                    0,
                    reads,
                    {total: size},
                    in_place=in_place,
                )
            )
            name = total
        self._accumulated[which] = name

    def _embed_backward(self, micro: int) -> None:
        writes = self._end_gradient("embedding", micro)
        # Where the vocabulary is split, a DTensor writes the gradient of the whole matrix, of which
        # it keeps its part.
        split = self.degrees.tensor > 1 and self._gathers
        moved = self.fabric.op_s(0, 0, 2 * self.part + sum(writes.values()))
        part, writes = writes, dict.fromkeys(writes, 2 * self._end_size) if split else writes
        if split and not self._sums_whole_embedding:
            writes = {f"{name} whole": size for name, size in writes.items()}
        reads: tuple[str, ...] = (f"D x 0 {micro}",)
        if self._splits_sequence:
            rows = f"D rows {micro}"
            made = self._passing(f"rows' {micro}") | {rows: self.whole}
            self._add(Op(f"rows' {micro}", "backward", 0.0, 0, reads, made))
            reads += (rows,)
        workspace = self._embedding_workspace if writes else 0
        self._add(Op(f"embed' {micro}", "backward", moved, workspace, reads, writes))
        if not part.keys() <= writes.keys():
            self._add(Op(f"own {micro}", "backward", 0.0, 0, tuple(writes), part))
        self._keep_end("embedding", micro)

    @property
    def _embedding_workspace(self) -> int:
        """fp32 sums of tokens of one word, by tens, and of words.

        As ``EmbeddingBackwardKernel.cu`` of PyTorch allocates them for more than 3072 tokens.
        """
        if self.tokens <= 3072:
            return 0
        parts = -(-self.tokens // 10) + min(self.tokens, self.model.vocab)
        return 4 * parts * self.model.hidden

    def _cut_embedding(self) -> None:
        """Keep a rank's part of the embedding's summed gradient, just before it is reduced."""
        total = self._accumulated.get("embedding", "")
        if not (self._sums_whole_embedding and total.startswith("G sum ")):
            return
        part = total.replace("G sum ", "G cut ")
        size = 4 * -(-self._end_size // self.degrees.tensor)
        moved = self.fabric.op_s(0, 0, 2 * size)
        self._add(Op(f"cut {total[6:]}", "backward", moved, 0, (total,), {part: size}))
        self._accumulated["embedding"] = part

    def _outputs(self) -> dict[str, int]:
        """What each micro-batch leaves to the next step: name without its number -> bytes.

        The last stage's outputs stay unless they are dropped, and where they are DTensors, what
        made them: the buffer with the stage's input.
        """
        if not self._sums_in_pipeline:
            return {}
        libraries, found = self.training.libraries, {}
        for stage in self.stages.values():
            if stage.head and libraries.dropped_outputs:
                continue
            if stage.head:
                found["L raw"] = self.tokens * -(-self.model.vocab // self.degrees.tensor) * 2
                if self.degrees.tensor > 1 and not (libraries.held_messages or stage.embedding):
                    found[f"A x {stage.layers.start}"] = self.part
            elif libraries.held_outputs:
                found[f"A x {stage.layers.stop}"] = self.part
        return found

    def _hold_earlier_outputs(self) -> None:
        """Outputs of the micro-batches that came before those which are played."""
        earlier = range(self.training.micro_batches(self.degrees) - self.num_micro)
        if not self.one_stream or not earlier:
            return
        writes = {
            f"{name} earlier {k}": size for name, size in self._outputs().items() for k in earlier
        }
        self._earlier = tuple(writes)
        if self._keeps_sent_back:
            starts = [one.layers.start for one in self.stages.values() if not one.embedding]
            sent = {f"D x {start} earlier {k}": self.part for start in starts for k in earlier}
            self._sent_back += sent
            writes |= sent
        if writes:
            self._add(Op("earlier outputs", "forward", 0.0, 0, (), writes))

    @cached_property
    def _sent_back(self) -> list[str]:
        """Gradients of the inputs of stages that were sent, and are held until the next is."""
        return []

    @property
    def _several_stages(self) -> bool:
        """Whether the schedule is one for several stages on each rank."""
        return self.training.schedule not in ("1f1b", "gpipe")

    @property
    def _keeps_sent_back(self) -> bool:
        """Whether gradients that were sent are held until the last backward of the rank.

        `torch.distributed.pipelining` waits for them there where it runs such schedules.
        """
        waits = self._sums_in_pipeline and self._several_stages
        return waits and not self.training.libraries.held_outputs

    def _finish(self) -> None:
        """Outputs that a pipeline holds, and the last stage's in one; then the optimizer."""
        outputs = self._outputs()
        played = range(self.num_micro)
        self.results += [*self._earlier, *(f"{name} {k}" for name in outputs for k in played)]
        if "L raw" in outputs:
            parts = tuple(name for name in self.results if name.startswith("L raw"))
            size = outputs["L raw"] * len(parts)
            self._add(Op("outputs", "backward", 0.0, 0, parts, {"L outputs": size}))
        shard = sum(
            self._shard_parameters(unit)
            for stage in self.stages.values()
            for unit in [*map(str, stage.layers), *self._end_units(stage)]
        )
        self.results += self._sharded.values()
        whole = sum(
            self._unit_parameters(unit)
            for stage in self.stages.values()
            for unit in [*map(str, stage.layers), *self._end_units(stage)]
        )
        plain = self.training.state == "fsdp2" and not self.training.fused_optimizer
        num_layers = sum(len(stage.layers) for stage in self.stages.values())
        self._add(
            Op(
                "optimizer",
                "backward",
                self.seconds.optimizer_s(shard, whole, num_layers),
                4 * shard if plain else 0,
                tuple(self._sharded.values()),
            )
        )
