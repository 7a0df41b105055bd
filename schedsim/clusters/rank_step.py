"""The step of one rank as a graph of ops, and the order in which the rank runs them.

Tensors are named ``KIND NAME``; `kind_of` reads the kind from the name. The weights of a layer are
one unit, which is gathered into a buffer, unpacked, and freed. Its gradients are packed into a
buffer and reduced, and the rank keeps its part (PyTorch's FSDP2). With a pipeline, weights stay
gathered from the first
micro-batch to the last and gradients are added up whole, in fp32. After a stage's last backward its
units are reduced one after the other (`torch.distributed.pipelining`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..dataflow.graph import Op
from ..pipelines.orders import Action
from .layer_spans import backward_ops
from .rank_layers import LayerOpsWriter
from .stages import StageParts
from .tape import RankOp

KINDS = {
    "W": "gathered parameters",
    "AG": "communication buffers",
    "RS": "communication buffers",
    "G": "gradients, not yet sharded",
    "SG": "gradients",
    "A": "activations",
    "D": "gradients of activations",
    "L": "logits and loss",
    "T": "tokens",
    "H": "host memory",
}
"""First word of a tensor's name -> kind of memory."""


def kind_of(tensor: str) -> str:
    """Kind of memory of `tensor`."""
    if tensor.startswith("workspace of"):
        return "workspaces"
    return KINDS.get(tensor.partition(" ")[0], "other")


class RankStep(LayerOpsWriter):
    """Writes the ops of a rank; `graph` and `schedule` are the result.

    Parameters
    ----------
    stages
        Pipeline stages that the rank holds.
    actions
        The actions of the rank, in order.
    one_stream
        Whether all ops run on one stream, in the order in which the host issues them, as the
        allocator sees them. Otherwise messages run beside computation.
    """

    _split = False  # whether the gradients of weights are written by actions of their own
    _sent_on = ""  # the output that was sent last

    def write(self, actions: Sequence[Action]) -> RankStep:
        """Append the ops of `actions`, then those of the optimizer."""
        self._split = any(action.kind == "W" for action in actions)
        self.num_micro = 1 + max(action.micro for action in actions)
        final = "W" if self._split else "B"
        last = {a.stage: a.micro for a in actions if a.kind == final}
        if self._gathers:
            for stage in self.stages.values():
                for unit in self._end_units(stage):
                    self._gather_now(unit, 0)
        self._hold_earlier_outputs()
        self._hold_logits_before()
        for action in actions:
            stage = self.stages[action.stage]
            if action.kind == "F":
                self._forward(stage, action.micro)
            elif action.kind == "B":
                self._backward(stage, action.micro, last[action.stage] == action.micro)
            else:
                self._weights(stage, action.micro, last[action.stage] == action.micro)
        self._drop_sent()
        self._release()
        if self._sent_back:
            self._add(Op("sent back", "backward", reads=tuple(self._sent_back)))
        if not self._sums_in_pipeline:
            for stage in self.stages.values():
                self._reduce_ends(stage)
        self._finish()
        return self

    def _reduce_ends(self, stage: StageParts) -> None:
        for unit in self._end_units(stage):
            parts = ("embedding", "head") if unit == "ends" else (unit,)
            self._cut_embedding()
            held = [self._accumulated.pop(one) for one in parts if one in self._accumulated]
            self._accumulated[unit] = "|".join(held)
            self._reduce(unit, "end")

    def _reduce_stage(self, stage: StageParts) -> None:
        """All units of a stage of a pipeline, after its last backward: the ends come first."""
        self._reduce_ends(stage)
        for number in stage.layers:
            self._reduce(str(number), "end")
        self._release()

    def _forward(self, stage: StageParts, micro: int) -> None:
        numbers = list(stage.layers)
        if stage.embedding:
            self._embed(micro)
        else:
            start = stage.layers.start
            made = {f"A x {start} {micro}": self._message_bytes}
            self._add(Op(f"receive {start} {micro}", writes=made))
        for number in numbers:
            if self._gathers:
                self._gather_now(str(number), micro)
            begin = len(self.runs)
            for op in self._layer(number).forward:
                self._add(self._instance(op, number, micro, "forward"))
            self.layer_codes.append((begin, len(self.runs)))
            if self._offloads(number):
                self._send(number, micro)
        if stage.head:
            self._head(stage, micro)
        self._drop_gathered()
        if self._sums_in_pipeline:
            self._end_forward(stage, micro)

    def _gather_back(self, back: Sequence[int], k: int, micro: int) -> None:
        """Gather for the backward of ``back[k + 1]``; its host unpacks it when that begins."""
        if self._gathers and k:
            self._unpack(str(back[k]), micro)
        if self._gathers and k + 1 < len(back):
            self._begin_gather(str(back[k + 1]), micro)

    def _backward(self, stage: StageParts, micro: int, final: bool) -> None:
        numbers = list(stage.layers)
        # Copies back begin in this order, each when the backward of the layer before it begins.
        coming = [number for number in reversed(numbers) if self._offloads(number)]
        self._free_sent()
        if coming and stage.head:
            self._fetch(coming[0], micro, f"A x {stage.layers.stop} {micro}")
        if stage.head:
            self._head_backward(micro)
        else:
            after = stage.layers.stop
            self._add(
                Op(
                    f"receive' {after} {micro}",
                    "backward",
                    reads=(f"A x {after} {micro}",) if self._holds_outputs else (),
                    writes={f"D x {after} {micro}": self._message_bytes},
                )
            )
        if coming and not stage.head:
            self._fetch(coming[0], micro, f"D x {stage.layers.stop} {micro}")
        back = numbers[::-1]
        for k, number in enumerate(back):
            if number in coming[:-1]:
                later = coming[coming.index(number) + 1]
                self._fetch(later, micro, f"D x {number + 1} {micro}")
            # The last layer's parameters were not freed, as its backward is next.
            if not self._stays:
                self._gather_back(back, k, micro)
            begin = len(self.runs)
            self._backward_of_layer(number, micro)
            self.layer_codes.append((begin, len(self.runs)))
            if not self._split:
                self._collect(number, micro, final)
            self._drop_sent()
        if stage.embedding:
            self._embed_backward(micro)
        if self._sums_in_pipeline:
            self._end_backward(stage, micro)
            if final and not self._split:
                self._reduce_stage(stage)

    def _backward_of_layer(self, number: int, micro: int) -> None:
        """The ops of a layer's backward, and those of its forward that run again."""
        again, idle = self._policy_of(number)
        ops = backward_ops(self._layer(number), again, self.training)
        is_done = not again
        for op, is_again in ops:
            if not is_again:
                self._add_backward(op, number, micro, idle if is_done else set())
                idle = set() if is_done else idle
            else:
                self._run_again(op, number, micro)
            is_done = is_done or is_again

    def _run_again(self, op: RankOp, number: int, micro: int) -> None:
        """Repeat an op of a layer's forward; from what was copied back, it is an op of its own."""
        name = f"{op.name} {number} {micro}"
        if self._offloads(number):
            name += " again"
            if name not in self._index:
                self._add(self._instance(op, number, micro, "again"))
                return
        self._repeat(name)

    @property
    def _message_bytes(self) -> int:
        """Bytes of the buffer of a message; 0 where those of all messages are resident."""
        if self.training.libraries.held_messages or not self._gathers:
            return 0
        return self.part

    @property
    def _holds_outputs(self) -> bool:
        """Whether a stage's output stays for its backward, though it was sent.

        Schedules of one stage a rank free it (torch 2.15).
        """
        return self._several_stages or self.training.libraries.held_messages or not self._gathers

    def _end_forward(self, stage: StageParts, micro: int) -> None:
        """A sent output is freed after the next forward, or before the next backward."""
        self._free_sent()
        freed = not (stage.head or self._holds_outputs)
        self._sent_on = f"A x {stage.layers.stop} {micro}" if freed else ""

    def _free_sent(self) -> None:
        if self._sent_on:
            self._add(Op(f"sent {self._sent_on}", "forward", reads=(self._sent_on,)))
            self._sent_on = ""

    def _end_backward(self, stage: StageParts, micro: int) -> None:
        """What a stage was called with is freed, and what its backward before has sent on."""
        reads: tuple[str, ...] = ()
        if not stage.head:
            after = stage.layers.stop
            reads = (f"D x {after} {micro}",)
            reads += (f"A x {after} {micro}",) if self._holds_outputs else ()
        if not self._keeps_sent_back:
            reads += tuple(self._sent_back)
            self._sent_back.clear()
        if not stage.embedding:
            self._sent_back.append(f"D x {stage.layers.start} {micro}")
        if reads:
            self._add(Op(f"return' {stage.number} {micro}", "backward", reads=reads))

    def _add_backward(self, op: RankOp, number: int, micro: int, idle: set[str]) -> None:
        made = self._instance(op, number, micro, "backward")
        split = self._split and op.kind == "product"
        if not (idle or split):
            self._add(made)
            return
        extra = tuple(self._name(one, number, micro) for one in idle)
        writes, time_s = made.writes, made.time_s
        if split:
            writes = {one: size for one, size in writes.items() if not one.startswith("G ")}
            time_s /= 2
        self._add(
            Op.unchecked(
                made.name,
                "backward",
                time_s,
                made.workspace_bytes,
                (*made.reads, *extra),
                dict(writes),
                in_place=dict(made.in_place),
                stream=made.stream,
            )
        )

    def _weights(self, stage: StageParts, micro: int, final: bool) -> None:
        """Write the gradients of the weights, if the backward is split."""
        for number in reversed(stage.layers):
            for op in self._layer(number).backward:
                if op.kind != "product":
                    continue
                made = self._instance(op, number, micro, "backward")
                gradients = {one: n for one, n in made.writes.items() if one.startswith("G ")}
                self._add(
                    Op(f"{made.name} w", "backward", made.time_s / 2, 0, made.reads, gradients)
                )
            self._collect(number, micro, final)
        if final and self._sums_in_pipeline:
            self._reduce_stage(stage)

    def _collect(self, number: int, micro: int, final: bool) -> None:
        """Keep, add up or reduce the gradients of a layer."""
        unit, state = str(number), self.training.state
        names = tuple(self._name(one, number, micro) for one in self._layer(number).weights)
        if state == "megatron":
            self._accumulated[unit] = f"D x {number} {micro}"
            if final:
                self._reduce(unit, str(micro))
            return
        if state == "bf16":
            if not self.training.optimizer_in_backward and micro == 0:
                self.results += names
            self._accumulated[unit] = "|".join(names)
            if final:
                self._reduce(unit, str(micro))
            return
        if not self._stays or self.num_micro == 1:
            self._accumulated[unit] = "|".join(names)
            if not self._sums_in_pipeline:
                self._reduce(unit, str(micro))
            return
        size = 4 * self._unit_parameters(unit)
        before, made = self._accumulated.get(unit), f"G sum {unit} {micro}"
        reads = (*names, before) if before else names
        self._add(
            Op(
                f"sum {unit} {micro}",
                "backward",
                self.seconds.sum_s(size // 4),
                0,
                reads,
                {made: size},
                in_place={made: before} if before else {},
            )
        )
        self._accumulated[unit] = made
        if final and not self._sums_in_pipeline:
            self._reduce(unit, str(micro))
