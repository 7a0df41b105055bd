"""Attention as CUDA's kernels keep it, in sizes alone."""

from __future__ import annotations

import contextlib

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from schedsim.validation.capture.attention import substituted  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from schedsim.errors import UnsupportedError  # noqa: E402


class Noting(TorchDispatchMode):
    """The ops that run, with the shapes of their outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[tuple[int, ...]]] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        tensors = out if isinstance(out, tuple | list) else (out,)
        shapes = [tuple(t.shape) for t in tensors if isinstance(t, torch.Tensor)]
        self.seen[function.overloadpacket.__name__] = shapes
        return out


def attended(dtype, width=16, *, heads=4, kv_heads=None, mask=None, dims=4, **given):
    """What runs for a query of (2, heads, 40, width) with substituted kernels, and the output."""
    with FakeTensorMode(), substituted("cuda"):
        shape = (2, heads, 40, width)[-dims:]
        query = torch.empty(shape, dtype=dtype)
        key = torch.empty((2, kv_heads or heads, 40, width)[-dims:], dtype=dtype)
        if mask is not None:
            mask = torch.empty(mask[0], dtype=mask[1])
        with Noting() as noting:
            out = F.scaled_dot_product_attention(query, key, key, mask, **given)
    return noting.seen, out


FLASH = "_scaled_dot_product_flash_attention"
EFFICIENT = "_scaled_dot_product_efficient_attention"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_without_a_mask_is_flash(dtype):
    """It keeps the output and a number a row."""
    seen, out = attended(dtype)
    assert out.shape == (2, 4, 40, 16)
    assert EFFICIENT not in seen
    assert seen[FLASH][1] == (2, 4, 40)


def test_uneven_widths_are_padded_and_cut():
    """The kernel wants multiples of 8."""
    seen, out = attended(torch.float16, width=12)
    assert out.shape == (2, 4, 40, 12)
    assert seen[FLASH][0][-1] == 16


@pytest.mark.parametrize(
    ("dtype", "mask"),
    [
        (torch.float32, None),
        (torch.float16, ((40, 40), torch.bool)),
        (torch.bfloat16, ((2, 1, 40, 40), torch.bfloat16)),
    ],
)
def test_others_are_memory_efficient(dtype, mask):
    """No matrix of scores is kept, but a number a row where a gradient is wanted."""
    seen, out = attended(dtype, mask=mask)
    assert out.shape == (2, 4, 40, 16)
    assert FLASH not in seen
    assert seen[EFFICIENT][1] == (2, 4, 64)  # rows in steps of 32


def test_grouped_keys_are_repeated():
    """Two heads of keys for four of queries."""
    seen, out = attended(torch.float16, kv_heads=2, enable_gqa=True)
    assert out.shape == (2, 4, 40, 16)
    assert FLASH in seen


def test_other_dimensions_are_refused():
    """With what to do."""
    with pytest.raises(UnsupportedError, match="3-dimensional query") as caught:
        attended(torch.float16, dims=3)
    assert "native" in caught.value.hint


def test_the_function_comes_back():
    """Whatever happens; and native kernels are left alone."""
    own = F.scaled_dot_product_attention
    with substituted("native"):
        assert F.scaled_dot_product_attention is own
    with contextlib.suppress(KeyError), substituted("cuda"):
        assert F.scaled_dot_product_attention is not own
        raise KeyError
    assert F.scaled_dot_product_attention is own
