"""Selective checkpointing: which calls of a layer are saved."""

from __future__ import annotations

import pytest
from small_exports import executed, loose

from schedsim.export.to_torch_sac import ATEN, aten_name

pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize(
    ("kind", "name"),
    [("attention.qkv", "addmm"), ("h.mlp.gelu", "gelu"), ("x.mm#2", "mm"), ("mul", "mul")],
)
def test_kinds_are_called_as_aten_calls_them(kind, name):
    """By the last part; what the formula does not name has its own name."""
    assert aten_name(kind) == name
    assert aten_name(f"layer.{next(iter(ATEN))}") == ATEN[next(iter(ATEN))]


def test_calls_of_a_layer_in_order():
    """Two norms, four products with weights, two without; all saved where memory is plenty."""
    names = executed(loose("torch-sac", True).text)
    assert names["NUM_LAYERS"] == 2
    save = names["SAVE"]
    assert {op: len(calls) for op, calls in save.items()} == {
        "native_layer_norm": 2, "addmm": 4, "bmm": 2, "_softmax": 1, "native_dropout": 1,
        "add": 2, "gelu": 1,
    }  # fmt: skip
    assert all(all(calls) for calls in save.values())
