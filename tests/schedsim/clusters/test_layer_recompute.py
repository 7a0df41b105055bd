"""What a layer keeps and runs again, by policy and as torch.compile orders it."""

from collections import Counter

import pytest
from cluster_layers import FABRIC, layer

from schedsim.clusters import Degrees, Libraries, Training, get_architecture
from schedsim.clusters.layer_ops import LayerWriter
from schedsim.clusters.layer_recompute import as_needed, kept_tensors, repeated_ops
from schedsim.clusters.layer_spans import backward_ops


def test_what_torchtitan_keeps():
    """Attention and every second product; the list of the eager policy holds what nobody reads."""
    made, training = layer("llama3-8b", 16384, seq=8192, batch=2)
    kept = kept_tensors(made, "selective", training)
    assert kept == {"q", "v", "mixed", "lse", "gate", "down"}
    # Observed on PyTorch's own allocator: 128, 32, 128, 2, 448 and 128 MiB a layer.
    assert sum(made.sizes[t] for t in kept) == 866 << 20
    assert "down" not in {t for op in made.backward for t in op.reads}


def test_compiled_layers_keep_what_products_read():
    """Norms and rotations are not written twice."""
    made, training = layer("llama3-8b", 1024, seq=1024, compiled=True)
    kept = kept_tensors(made, "none", training)
    assert {"n1", "n2", "act", "q.turned", "k.turned.wide"} <= kept
    assert [op.name for op in repeated_ops(made, kept, training)] == ["h"]


def test_a_checkpoint_runs_all_that_it_does_not_keep():
    """Eager up to the last op that is needed; compiled what is needed alone."""
    for compiled in (False, True):
        training = Training(seq=1024, compiled=compiled)
        model = get_architecture("llama3-8b")
        made = LayerWriter(model, Degrees(tensor=8), training, 1024, FABRIC).layer(False)
        kept = kept_tensors(made, "keep=o.part+mixed", training)
        again = [op.name for op in repeated_ops(made, kept, training)]
        assert ("o" in again) == (not compiled)
        assert "mixed" not in again
        assert "down" not in again


@pytest.mark.parametrize(
    ("name", "products"),
    [
        ("deepseek-v2-lite", {"q", "kv", "s.gate", "s.down"}),
        ("deepseek-v3", {"q.down", "kv.down", "o", "s.up"}),
        ("qwen3-30b-a3b", {"q", "v"}),
    ],
)
def test_selective_keeps_no_product_of_a_group_of_experts(name, products):
    """torchtitan's list has ``mm`` and not ``_grouped_mm``, and does not count the router's."""
    made, training = layer(name, 8, Degrees(fsdp=8, expert=8))
    assert kept_tensors(made, "selective", training) == products | {"mixed", "lse"}


def test_a_traced_graph_runs_an_op_again_once_right_before_it_is_read():
    """As compiled code, but that what an attention reads is there for its backward too."""
    made, training = layer("llama3-8b", 64, libraries=Libraries(traced=True))
    again = repeated_ops(made, kept_tensors(made, "full", training), training)
    order = backward_ops(made, again, training)
    assert [op for op, is_again in order if not is_again] == list(made.backward)
    assert Counter(op.name for op, is_again in order if is_again) == {op.name: 1 for op in again}
    first_of_attention = next(k for k, (op, _) in enumerate(order) if op.name == "mixed")
    assert first_of_attention > 0  # the MLP's gradient of its last product comes first


@pytest.mark.parametrize("policy", ["full", "selective", "keep=gate"])
def test_compiled_code_runs_an_op_again_right_before_it_is_needed(policy):
    made, training = layer("llama3-8b", 64, compiled=True)
    again = repeated_ops(made, kept_tensors(made, policy, training), training)
    order = as_needed(again, made.backward)
    assert [op for op, is_again in order if not is_again] == list(made.backward)
    runs = Counter(op.name for op, is_again in order if is_again)
    assert runs.keys() == {op.name for op in again}
    # What an attention that runs again reads is written for it, and again for its backward.
    twice = {"q.turned", "k.turned.wide", "v.wide"} if runs["mixed"] else set()
    assert {name for name, count in runs.items() if count > 1} == twice
    made_again = {tensor for op in again for tensor in op.writes}
    there: set[str] = set()
    for k, (op, is_again) in enumerate(order):
        assert set(op.reads) & made_again <= there
        there |= set(op.writes)
        if is_again:
            follower, is_source = order[k + 1]
            assert is_source or set(follower.reads) & set(op.writes)
            assert any(set(reader.reads) & set(op.writes) for reader, _ in order[k + 1 :])
