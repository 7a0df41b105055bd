"""Names of ops: short, and the module they come from."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.capture.naming import clean, short_op_name


@pytest.mark.parametrize(
    ("op", "short"),
    [
        ("_native_batch_norm_legit_functional", "batch_norm"),
        ("native_layer_norm_backward", "layer_norm"),
        ("_scaled_dot_product_flash_attention_for_cpu_backward", "flash_attention"),
        ("_softmax_backward_data", "softmax"),
        ("embedding_dense_backward", "embedding"),
        ("mm", "mm"),
    ],
)
def test_the_op_and_not_how_torch_spells_it(op, short):
    """A backward has the name of its forward: the phase is said elsewhere."""
    assert short_op_name(op) == short


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("L['self'].model.h[0].mlp", "h.0.mlp"),
        ("L['self'].model._modules['h']._modules['0']", "h.0"),
        ("L['self'].model", ""),
        ("model", ""),
        ("encoder.layers.3", "encoder.layers.3"),
    ],
)
def test_the_path_as_in_the_model(path, module):
    """Not as Dynamo or modules spell it."""
    assert clean(path) == module
