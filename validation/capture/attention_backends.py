"""Which attention kernel CUDA's PyTorch runs, by device, number format, widths and mask.

The table of docs/dry-cuda.md has its answers, and a test on a CUDA device, real or dry, compares it
with PyTorch's own choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

FLASH, EFFICIENT, CUDNN, PLAIN = "flash", "efficient", "cudnn", "plain"

CUDA_KERNELS: dict[str, tuple[int, int]] = {
    "cuda": (8, 0),
    "cuda-sm80": (8, 0),
    "cuda-sm86": (8, 6),
    "cuda-sm89": (8, 9),
    "cuda-sm90": (9, 0),
}
"""Values of ``kernels=`` that count CUDA's attention, and the compute capability of each."""

KERNELS = ("native", *CUDA_KERNELS)
"""All values of ``kernels=``."""

_CAPABILITIES = {
    "a100-80gb": "cuda-sm80",
    "a100-40gb": "cuda-sm80",
    "rtx3090": "cuda-sm86",
    "rtx4090": "cuda-sm89",
    "l40s": "cuda-sm89",
    "h100": "cuda-sm90",
    "h200": "cuda-sm90",
}

_WIDEST_FLASH = 256
_CUDNN = (9, 0)
_CUDNN_WIDTHS = ((192, 128), (256, 256))
"""Where cuDNN's kernels come first, and the widths over 128 that they have: of query and value."""


@dataclass(frozen=True)
class Attending:
    """The facts by which PyTorch chooses a kernel of ``scaled_dot_product_attention``.

    Attributes
    ----------
    dtype
        Of query, key and value.
    width, value_width
        The last axis of query and key, and of value.
    rows, keys
        Rows of the query, and of key and value.
    mask
        Whether there is one; ``mask_trained`` if a gradient of it is wanted.
    trained
        Whether a gradient of query, key or value is wanted.
    """

    dtype: torch.dtype
    width: int
    value_width: int
    rows: int = 64
    keys: int = 64
    mask: bool = False
    mask_trained: bool = False
    dropout: bool = False
    causal: bool = False
    trained: bool = True

    @property
    def half(self) -> bool:
        """Whether the numbers have 16 bits."""
        return self.dtype in (torch.float16, torch.bfloat16)


def kernels_of(device: str) -> str:
    """The value of ``kernels=`` for a device by its name in ``--device``; ``"cuda"`` if unknown.

    Examples
    --------
    >>> kernels_of("h100"), kernels_of("a100-80gb"), kernels_of("cpu")
    ('cuda-sm90', 'cuda-sm80', 'native')
    """
    return "native" if device == "cpu" else _CAPABILITIES.get(device, "cuda")


def attention_backend(asked: Attending, capability: tuple[int, int]) -> str:
    """The kernel that PyTorch 2.11 to 2.15 with cuDNN later than 9.15 runs.

    The first of cuDNN's (on compute capability 9.0), flash and memory-efficient attention that
    takes the case, else the plain form, which stores two matrices of rows by keys. With
    ``TORCH_CUDNN_SDPA_DEPRIORITIZED=1``, capability 9.0 is as 8.0.

    Parameters
    ----------
    asked
        The case.
    capability
        Compute capability of the device, 8.0 or later.

    Returns
    -------
    str
        ``"cudnn"``, ``"flash"``, ``"efficient"`` or ``"plain"``.

    Examples
    --------
    >>> half = Attending(torch.bfloat16, 64, 64)
    >>> attention_backend(half, (8, 0)), attention_backend(half, (9, 0))
    ('flash', 'cudnn')
    """
    if capability == _CUDNN and _cudnn_takes(asked):
        return CUDNN
    if _flash_takes(asked, capability):
        return FLASH
    return EFFICIENT if _efficient_takes(asked) else PLAIN


def _cudnn_takes(asked: Attending) -> bool:
    widths = (asked.width, asked.value_width)
    known = max(widths) <= 128 or widths in _CUDNN_WIDTHS
    aligned = all(width % 8 == 0 for width in widths)
    plain = not asked.dropout and not asked.mask_trained
    return asked.half and known and aligned and plain and asked.keys > 1


def _flash_takes(asked: Attending, capability: tuple[int, int]) -> bool:
    if not asked.half or asked.mask or asked.width != asked.value_width:
        return False
    if asked.width > _WIDEST_FLASH or (asked.causal and asked.rows != asked.keys):
        return False
    small = capability in ((8, 6), (8, 9))  # less shared memory: not every backward fits
    between = 192 < asked.width <= 224
    return not (small and asked.trained and (between or (asked.width > 224 and asked.dropout)))


def _efficient_takes(asked: Attending) -> bool:
    if not asked.half and asked.dtype is not torch.float32:
        return False
    step = 16 // asked.dtype.itemsize  # rows begin at multiples of 16 bytes
    return asked.width % step == 0 and asked.value_width % step == 0
