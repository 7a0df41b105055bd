"""Sizes of layers."""

from schedsim.clusters import Architecture, AttentionSizes, ExpertSizes, get_architecture


def test_parts_add_up():
    """Layers, ends and the whole."""
    model = get_architecture("deepseek-v3")
    layers = sum(
        model.shared_parameters(i) + model.routed_parameters(i) for i in range(model.num_layers)
    )
    assert model.num_parameters == layers + model.embedding_parameters + model.head_parameters
    assert [model.has_experts(i) for i in range(5)] == [False] * 3 + [True] * 2


def test_a_small_model_by_hand():
    """Two layers of width 4: attention 4 x 16, MLP 3 x 4 x 8, two norms, embedding, norm, head."""
    model = Architecture("small", 2, 4, 10, 8, AttentionSizes(2, 2, 2))
    assert model.layer_parameters(0) == 64 + 96 + 8
    assert model.num_parameters == 40 + 2 * 168 + 4 + 40
    assert model.model_flops(6) == 6 * (2 * 168 + 44) + 6 * 2 * 8 * 6


def test_latent_attention_by_hand():
    """Down to 3 and 2 + 1, norms of both, up to 2 heads of 3 (1 of them position) and of 2 + 2."""
    sizes = AttentionSizes(2, 2, 3, 2, query_rank=3, kv_rank=2, rope_width=1)
    query = 5 * 3 + 3 + 3 * 6
    keys = 5 * 3 + 2 + 2 * 2 * (2 + 2)
    assert sizes.num_parameters(5) == query + keys + 4 * 5


def test_experts_by_hand():
    """A router, three products each, and one that is shared."""
    sizes = ExpertSizes(4, 2, 6, shared_width=3)
    assert sizes.routed_parameters(5) == 4 * 3 * 5 * 6
    assert sizes.common_parameters(5) == 4 * 5 + 3 * 5 * 3
