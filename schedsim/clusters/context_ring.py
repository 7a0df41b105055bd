"""What attention over parts of a sequence takes beside its flops, as PyTorch runs it.

`torch.distributed.tensor.experimental` attends to the keys and values of one rank after another
(``_templated_ring_attention``). Keys and values are put together and gathered once, forward and
backward. Each part's output is merged with those before it in fp32. Backward, gradients of queries
are summed in fp32, and those of keys and values go from rank to rank in fp32, one message for each
rank, so that each adds its own. The causal work is shared equally (``enable_load_balance``), and
every part takes the same time.

Compiled code fuses some of the merges and sums: bytes are those of the kernels that Inductor writes
(``benchmarks/ring_traffic.py``). It waits for each message where it is sent, as a traced
collective is. Eager code waits before it reads what was sent, so that a message
runs beside the next part's attention.
"""

from __future__ import annotations

from dataclasses import dataclass

from .fabric import Fabric

_WIDE = 2
"""Bytes of fp32 for each byte in 16 bits."""


@dataclass(frozen=True, slots=True)
class ContextRing:
    """Attention of a layer over context-parallel ranks.

    Attributes
    ----------
    ranks, span
        Context-parallel ranks, and devices from the first of them to the last.
    query_bytes, pair_bytes, output_bytes
        Bytes of one rank's queries, of its keys and values together, and of its output, in 16 bits.
    compiled
        Whether the layer is compiled.
    """

    ranks: int
    span: int
    query_bytes: int
    pair_bytes: int
    output_bytes: int
    compiled: bool

    @property
    def forward_bytes(self) -> int:
        """Bytes read and written forward, on the rank that moves most."""
        later = self.ranks - 1
        if self.compiled:
            # Parts of the first rank are merged into half of the output, then put together with
            # the other half.
            return 2 * self.pair_bytes + round((5.5 * later + 1) * self.output_bytes)
        # Keys and values are laid out, then put together before each part but the last. Each output
        # is widened; a merge is a difference, a product and a difference, each a kernel.
        together = 2 * self.pair_bytes * (1 + later)
        kernels = (_WIDE + _WIDE + _WIDE) + (_WIDE + _WIDE) + (_WIDE + _WIDE + _WIDE)
        merges = (1 + _WIDE) * self.ranks + kernels * later + (_WIDE + 1)
        return together + merges * self.output_bytes

    @property
    def backward_bytes(self) -> int:
        """Bytes read and written backward, on the rank that moves most: the last."""
        later = self.ranks - 1
        if self.compiled:
            # Keys and values are put together; the first gradients are widened, the last are not.
            # In between, what came is summed and put together in kernels of 13 bytes a byte.
            pairs = 2 + (1 + _WIDE) + 13 * later + (_WIDE + 1)
            # One kernel adds up the queries' gradients.
            return pairs * self.pair_bytes + (self.ranks + 1) * self.query_bytes
        together = 2 * self.pair_bytes * (1 + later)
        # Zeros, a sum for each part, and the result in 16 bits.
        queries = _WIDE + (_WIDE + 1 + _WIDE) * self.ranks + (_WIDE + 1)
        # Later parts have half of the keys: their half is added to, then both halves are put
        # together. All is put together again to be sent.
        halves = (_WIDE + 1 + _WIDE) / 2 + 2 * _WIDE
        sums = _WIDE + (_WIDE + 1 + _WIDE) + halves * later + 2 * _WIDE * self.ranks + (_WIDE + 1)
        return together + queries * self.query_bytes + round(sums * self.pair_bytes)

    def forward_s(self, fabric: Fabric, attention_s: float) -> float:
        """Seconds beside the forward's attention, which takes `attention_s`."""
        gather_s = self._gather_s(fabric)
        if not self.compiled:
            gather_s = max(0.0, gather_s - attention_s / self.ranks)
        return gather_s + fabric.op_s(0, 0, self.forward_bytes)

    def backward_s(self, fabric: Fabric, attention_s: float) -> float:
        """Seconds beside the backward's attention, which takes `attention_s`."""
        gather_s, part_s = self._gather_s(fabric), attention_s / self.ranks
        sends = [fabric.send_s(_WIDE * self.pair_bytes, self.span - 1)] * self.ranks
        if not self.compiled:
            gather_s = max(0.0, gather_s - part_s)
            # Nothing runs beside the last one.
            sends[:-1] = [max(0.0, send_s - part_s) for send_s in sends[:-1]]
        return gather_s + sum(sends) + fabric.op_s(0, 0, self.backward_bytes)

    def _gather_s(self, fabric: Fabric) -> float:
        return fabric.gather_s(self.ranks * self.pair_bytes, self.ranks, self.span)
