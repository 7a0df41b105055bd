"""What moves tokens on a device between router and experts: bytes of kernels, and their number.

Tokens are sorted by expert, padded, sorted again where they arrive, put back, weighed by their
scores and added up. Each library does so with other kernels; their bytes were counted in its code,
as reads and writes for each byte of the routed tokens (a copy of a token for each of its experts)
in 16 bits. Products of experts and their activations do not count here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KERNEL_S = 7e-6
"""Least seconds of a kernel: what launching one takes on an H100 (github meta-pytorch/autoparallel,
pull request 146, set on measured ops)."""


@dataclass(frozen=True, slots=True)
class TokenRoute:
    """Kernels between router and experts.

    Attributes
    ----------
    sent, combined
        Bytes moved before the experts and behind them, for each byte of the routed tokens.
    combined_back, sent_back
        Those of their backward, in that order.
    wide
        Whether outputs of experts are converted to fp32 to be weighed, and kept so.
    kernels, kernels_back
        Kernels of router and sorting, too small for their bytes to count.
    batched
        Whether a batched product weighs outputs and adds them up.
    inside
        Whether the experts' activation is weighed, so that the backward reads no outputs.
    sending_s, returning_s
        Seconds of an exchange beside its kernels: of tokens to their experts, and of their sums.
    sending_processors
        How many of an H100's 132 processors send tokens.
    """

    sent: float
    combined: float
    combined_back: float
    sent_back: float
    wide: bool
    kernels: int
    kernels_back: int
    batched: bool = False
    inside: bool = False
    sending_s: float = 0.0
    returning_s: float = 0.0
    sending_processors: int = 20


ROUTES: Mapping[str, TokenRoute] = {
    # torchtitan to November 2025 (`moe.py`, `expert_parallel.py`): rows are gathered; where they
    # arrive, a row of zeros is put behind them (a copy), and they are sorted with padding. Back:
    # sorted, to fp32, weighed, to 16 bits, added to the output. Backward of each: gathered, the two
    # products of the weighing and a sum in fp32, a slice of zeros, sums by index.
    "padded": TokenRoute(2 + 2 + 2, 2 + 10 + 3, 2 + 3 + 12 + 3 + 3 + 2, 4 + 3, True, 35, 15),
    # To April 2026 (pull request 1974): put into zeros in the order of the tokens, converted to
    # fp32, and weighed and added up by one batched product.
    "product": TokenRoute(
        2 + 2 + 2, 2 + 3 + 3 + 2, 2 + 2 + 3 + 2 + 3 + 2, 4 + 3, True, 35, 15, True
    ),
    # Since then (pull requests 2774 and 2775): not padded; weighed and added up as at first.
    "sorted": TokenRoute(2 + 2, 2 + 10 + 3, 2 + 3 + 12 + 3 + 2, 4 + 3, True, 35, 15),
    # torchtitan with DeepEP (`deepep.py`): a row for each expert where tokens arrive; weighed in 16
    # bits, and added up there.
    "deepep": TokenRoute(2, 2 + 3, 2 + 6, 3, False, 35, 15),
    # Megatron with ``moe_permute_fusion``: a kernel sorts, and another one where tokens arrive; the
    # activation weighs. 103 kernels of a layer are no product of experts (a profile of Qwen3
    # 30B-A3B, skills/nemo-mbridge-perf-moe-comm-overlap of Megatron-Bridge), 43 have ops here.
    "fused": TokenRoute(2 + 2, 2 + 1, 1 + 2, 2 + 1, False, 30, 30, inside=True),
    # Megatron with ``moe_permute_fusion_into_hybridep``: the dispatcher's kernels sort. Through its
    # API, 4,096 tokens of 7,168 numbers on 16 H100 take 2.15 ms there and 2.20 back, its kernels
    # 1.63 and 1.86, and the copy out of its buffer 0.25 (docs/README_Hybrid-EP.md of DeepEP's
    # branch hybrid-ep, 16 SMs; its bytes are those to both nodes). Megatron-Bridge's recipes of
    # performance give it 32 (``moe_hybridep_num_sms``), Megatron DeepEP 20.
    "hybridep": TokenRoute(
        *(0, 0, 0, 0, False, 30, 30),
        inside=True,
        sending_s=0.27e-3,
        returning_s=0.09e-3,
        sending_processors=32,
    ),
    # The same without it: chunks are put together in their new order, sums go by index.
    "megatron": TokenRoute(2 + 2, 2 + 3, 2 + 2, 2 + 3, False, 35, 35, inside=True),
}
"""Name -> kernels."""


def route_of(name: str, state: str) -> TokenRoute:
    """The kernels called `name`; by default those that the library of the model state has today."""
    return ROUTES[name or ("sorted" if state == "fsdp2" else "fused")]


BIAS_MOVES = 6, 6
"""Megatron adds biases of experts part by part (``TEGroupedMLP._apply_bias``): the product of bias
and score, the sum, all put together; forward and backward, a byte of the experts' output."""
BIAS_KERNELS = 2, 8
"""Kernels of an expert for that: product and sum; backward two of each, the sums of both biases,
and their addition to the gradients of the step."""
CAST_KERNELS = 4
"""Kernels in which Transformer Engine casts the rows of one expert to 8 bits with a scale of now:
the largest number (zeroed, found), the scale, and the cast with its transpose
(``multi_tensor_quantize_impl`` fuses delayed scales alone). Inputs of both products forward, and
both gradients backward."""
PADDING_MOVES = 2
"""Megatron's rows in 8 bits are copied into a multiple of what a product needs for each expert
before the first product, and out of it after the last (``Fp8Padding`` in ``TEGroupedMLP``): read
and written, forward and backward."""
