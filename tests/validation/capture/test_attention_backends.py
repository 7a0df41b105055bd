"""Which attention kernel runs where: the rule, its table, and PyTorch's own choice."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from schedsim.validation.capture import capture  # noqa: E402
from schedsim.validation.capture.attention_backends import (  # noqa: E402
    CUDA_KERNELS,
    Attending,
    attention_backend,
    kernels_of,
)
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from schedsim.workloads.devices import DEVICES  # noqa: E402

PAGE = Path(__file__).parents[3] / "docs" / "dry-cuda.md"
DTYPES = {"bf16, fp16": torch.bfloat16, "fp32": torch.float32}
HALF = torch.bfloat16


def on_the_page() -> list[list[str]]:
    """Rows of the page's table of attention kernels, cell by cell."""
    text = PAGE.read_text().partition("## Which attention runs")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("row", on_the_page(), ids=" ".join)
def test_the_page_says_what_the_rule_says(row):
    """Each cell of the table is the rule's answer for each width that its row names."""
    numbers, width, mask, dropout, *kernels = row
    for one in width.split(", "):
        sizes = [int(size) for size in one.split("/")]
        asked = Attending(
            DTYPES[numbers],
            sizes[0],
            sizes[-1],
            mask=mask != "no",
            mask_trained=mask == "trained",
            dropout=dropout == "yes",
        )
        found = [attention_backend(asked, at) for at in ((8, 0), (8, 9), (9, 0))]
        assert found == kernels, one


def test_the_table_has_every_kernel():
    """And the rows that people meet first."""
    rows = on_the_page()
    assert {kernel for row in rows for kernel in row[4:]} == {
        "flash",
        "efficient",
        "cudnn",
        "plain",
    }
    assert len(rows) >= 10


@pytest.mark.parametrize(
    ("asked", "on_8_0", "on_9_0"),
    [
        (Attending(HALF, 64, 64, rows=32, causal=True), "efficient", "cudnn"),
        (Attending(HALF, 64, 64, keys=1), "flash", "flash"),
        (Attending(HALF, 192, 128), "efficient", "cudnn"),
        (Attending(HALF, 136, 136), "flash", "flash"),
        (Attending(torch.float64, 64, 64), "plain", "plain"),
    ],
)
def test_rarer_cases(asked, on_8_0, on_9_0):
    """As PyTorch 2.15 chose on dry devices."""
    assert attention_backend(asked, (8, 0)) == on_8_0
    assert attention_backend(asked, (9, 0)) == on_9_0


def test_wide_heads_without_gradients_are_flash_on_small_devices():
    """Only the backward does not fit."""
    wide = Attending(HALF, 256, 256, dropout=True, trained=False)
    assert attention_backend(wide, (8, 9)) == "flash"


def test_devices_have_the_kernels_of_their_capability():
    """Every device that is known by name; the CPU has its own."""
    assert {name: kernels_of(name) for name in ("h100", "h200", "rtx4090")} == {
        "h100": "cuda-sm90",
        "h200": "cuda-sm90",
        "rtx4090": "cuda-sm89",
    }
    assert {kernels_of(name) for name in DEVICES} <= {*CUDA_KERNELS, "native"}


class Attention(torch.nn.Module):
    """A product and attention on it."""

    def __init__(self, width, dtype, mask, dropout) -> None:
        super().__init__()
        self.width, self.dropout = width, dropout
        self.product = torch.nn.Linear(4 * width, 4 * width, bias=False, dtype=dtype)
        if mask is None:
            self.mask = None
        elif mask == "trained":
            self.mask = torch.nn.Parameter(torch.zeros(48, 48, dtype=dtype))
        else:
            self.register_buffer("mask", torch.zeros(48, 48, dtype=dtype if mask else torch.bool))

    def forward(self, x):
        """(2, 48, 4 width) to a loss."""
        heads = self.product(x).view(2, 48, 4, self.width).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(
            heads, heads, heads, self.mask, dropout_p=self.dropout
        )
        return mixed.float().sum()


def kinds(captured) -> list[tuple[str, list[int]]]:
    """Attention's ops of a graph, with the sizes of what they write."""
    return [
        (op.name, sorted(op.writes.values())) for op in captured.graph.ops if "attention" in op.name
    ]


def attending(width, dtype, mask, dropout, device):
    """The model and its input."""
    model = Attention(width, dtype, mask, dropout).to(device)
    return model, (torch.zeros(2, 48, 4 * width, dtype=dtype, device=device),)


@pytest.mark.parametrize("mask", [None, True])
def test_a_graph_for_sm90_has_cudnns_kernel(mask):
    """It keeps the output and a number a row; that of 8.0 is another."""
    model, inputs = attending(16, HALF, mask, 0.0, "cpu")
    forward, backward = kinds(capture(model, inputs, kernels="cuda-sm90"))
    assert forward[0].endswith("cudnn_attention")
    assert forward[1][-2:] == [2 * 4 * 48 * 4, 2 * 48 * 64 * 2]
    assert backward[0] == f"grad.{forward[0]}"
    other = kinds(capture(model, inputs, kernels="cuda"))
    assert other[0][0].endswith("efficient_attention" if mask else "flash_attention")


class Noting(TorchDispatchMode):
    """Kernels of attention that run forward."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name.startswith("_scaled_dot_product") and "backward" not in name:
            self.seen.append(name.split("_")[4])
        return function(*args, **(kwargs or {}))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_rule_is_pytorchs_choice_and_a_capture_elsewhere_that_of_the_device():
    """All cases: what runs, what a capture on the device has, and what one on the CPU has."""
    capability = torch.cuda.get_device_capability()
    names = {at: name for name, at in CUDA_KERNELS.items()}
    if capability not in names:
        pytest.skip(f"no rule for compute capability {capability}")
    cases = itertools.product(
        (16, 12, 192, 256, 264),
        (torch.bfloat16, torch.float16, torch.float32),
        (None, False, True, "trained"),
        (0.0, 0.1),
    )
    for case in cases:
        width, dtype, mask, dropout = case
        model, inputs = attending(*case, "cuda")
        with Noting() as noting:
            model(*inputs)
        asked = Attending(
            dtype,
            width,
            width,
            48,
            48,
            mask is not None,
            mask_trained=mask == "trained",
            dropout=dropout > 0,
        )
        ruled = attention_backend(asked, capability)
        assert ruled == (noting.seen or ["plain"])[0], case
        here = kinds(capture(model, inputs))
        assert bool(here) == (ruled != "plain"), case
        assert all(f"{ruled}_attention" in name for name, _ in here), case
        elsewhere = kinds(capture(*attending(*case, "cpu"), kernels=names[capability]))
        assert elsewhere == here, case
