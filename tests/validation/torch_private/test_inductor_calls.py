"""Canaries of what inductor does not document."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.torch_private import inductor_calls as inductor  # noqa: E402
from schedsim.validation.torch_private import joint_graphs as private  # noqa: E402

aten = torch.ops.aten


def test_decompositions_take_normalisation_apart_and_leave_what_we_keep():
    table = inductor.decompositions()
    assert aten.native_layer_norm.default in table
    assert aten.embedding_dense_backward.default not in table


def test_a_trace_is_of_decomposed_ops():
    mode = private.fake_mode()
    with mode:
        x = torch.empty(4, 8)
    graph = inductor.traced(lambda x: aten._softmax.default(x, 1, False), [x], mode)
    found = [node.target for node in graph.nodes if node.op == "call_function"]
    assert aten.exp.default in found
    assert aten._softmax.default not in found


def test_seeds_are_those_that_compiled_code_draws():
    """As many numbers of 64 bits; the generator moves on."""
    torch.manual_seed(0)
    one, two = inductor.draw_seeds(3, "cpu"), inductor.draw_seeds(3, "cpu")
    assert one.dtype is torch.int64
    assert one.tolist() != two.tolist()


def test_settings_are_ours_within_and_as_they_were_after():
    from torch._inductor import config

    before = config.reorder_for_peak_memory, config.reorder_for_locality, config.size_asserts
    with inductor.own_settings():
        assert (config.reorder_for_peak_memory, config.reorder_for_locality) == (False, False)
    assert (config.reorder_for_peak_memory, config.reorder_for_locality, config.size_asserts) == (
        before
    )
