"""A tape: ops of a forward in order, and the backward that follows from them.

As in a framework's autograd, each op on the tape says what its backward reads and writes. A tensor
with several readers gets a gradient from each of them, and the gradients are added. An op that
passes its gradient on unchanged, as a sum does, makes no new tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .fabric import Fabric

EXACT_SUMS = 1.15
"""Time of a product in 8 bits whose sums stay in fp32 over one with fast sums: 1.1 to 1.2 (github
pytorch/ao, issue 2377)."""


@dataclass(frozen=True, slots=True)
class RankOp:
    """One op on one rank.

    Attributes
    ----------
    name
    reads, writes
        Tensors by their name in the layer; sizes in bytes.
    flops, float8_flops
        Flops in 16 bits, and flops that may run in 8 bits.
    moved_bytes
        Memory traffic.
    stream
        ``compute``, or a stream of messages: ``tensor``, ``context``, ``expert``.
    link_s
        Seconds of a message; its op has no flops.
    workspace_bytes
        Bytes that live only while the op runs.
    kind
        ``product``, ``attention``, ``core`` (attention's work per pair of tokens), ``pointwise``,
        ``complex`` (pointwise, in numbers that no compiler fuses), ``scatter`` or ``gather``;
        recomputation policies choose by kind.
    in_place
        Output -> input whose storage it takes.
    element_bytes
        Bytes of each number that it writes: compiled code hands blocks on between tensors of one
        format.
    exact_sums
        Whether a product in 8 bits adds up in fp32 all along, as those of a backward do.
    kernels
        Kernels that the host launches for it, those of `link_s` aside.
    """

    name: str
    reads: tuple[str, ...]
    writes: Mapping[str, int]
    flops: float = 0.0
    float8_flops: float = 0.0
    moved_bytes: int = 0
    stream: str = "compute"
    link_s: float = 0.0
    workspace_bytes: int = 0
    kind: str = "pointwise"
    in_place: Mapping[str, str] = field(default_factory=dict)
    element_bytes: int = 2
    exact_sums: bool = False
    kernels: int = 1

    def compute_s(self, fabric: Fabric) -> float:
        """Seconds of its arithmetic or its memory traffic, without its message."""
        share = fabric.attention_share if self.kind == "attention" else 1.0
        low = self.float8_flops * (EXACT_SUMS if self.exact_sums else 1.0)
        return fabric.op_s(self.flops / share, low, self.moved_bytes)


class Tape:
    """The forward ops in the order of writing; `finish` appends those of the backward."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = dict(sizes)
        self.forward: list[RankOp] = []
        self.backward: list[RankOp] = []
        self._undo: list[Callable[[], None]] = []
        self._gradients: dict[str, list[str]] = {}

    def run(self, op: RankOp, undo: Callable[[], None]) -> None:
        """Append `op`; its backward is written when the tape is finished."""
        self.forward.append(op)
        self.sizes.update(op.writes)
        self._undo.append(undo)

    def then(self, undo: Callable[[], None]) -> None:
        """Here `undo` is called when the tape is finished: no op of the forward goes with it."""
        self._undo.append(undo)

    def emit(self, op: RankOp) -> None:
        """Append an op of the backward."""
        self.backward.append(op)
        self.sizes.update(op.writes)

    def gradient(self, tensor: str) -> str:
        """The gradient of `tensor`, its parts added up."""
        parts = self._gradients.get(tensor, [])
        if len(parts) == 1:
            return parts[0]
        size, total = self.sizes[tensor], parts[0]
        for k, part in enumerate(parts[1:]):
            name = f"d.{tensor}+{k}" if k < len(parts) - 2 else f"d.{tensor}"
            self.emit(
                RankOp(
                    f"add {name}",
                    (total, part),
                    {name: size},
                    moved_bytes=3 * size,
                    in_place={name: total},
                )
            )
            total = name
        self._gradients[tensor] = [total]
        return total

    def gradients(self, tensor: str) -> tuple[str, ...]:
        """The parts of the gradient of `tensor`, for an op that adds them itself."""
        return tuple(self._gradients.get(tensor, ()))

    def has_gradient(self, tensor: str) -> bool:
        """Whether anything has given `tensor` a gradient."""
        return bool(self._gradients.get(tensor))

    def give(self, tensor: str, gradient: str) -> None:
        """Add `gradient` as a part, perhaps the only part, of the gradient of `tensor`."""
        self._gradients.setdefault(tensor, []).append(gradient)

    def replace_gradient(self, tensor: str, gradient: str) -> None:
        """`gradient` takes the place of all parts of the gradient of `tensor`."""
        self._gradients[tensor] = [gradient]

    def new_gradient(self, tensor: str) -> str:
        """The name under which the next part of the gradient of `tensor` is written."""
        return f"d.{tensor}#{len(self._gradients.get(tensor, []))}"

    def finish(self, output: str, gradient: str) -> None:
        """Write the backward; `gradient` is the gradient of `output`."""
        self.give(output, gradient)
        for undo in reversed(self._undo):
            undo()

    def moved(self, reads: Sequence[str], writes: Mapping[str, int]) -> int:
        """Bytes read and written."""
        return sum(self.sizes.get(t, 0) for t in reads) + sum(writes.values())
