"""An MLP of experts on a rank: what is sent, weighed, cast, and computed in tiles."""

import pytest
from cluster_layers import FABRIC, layer

from schedsim.clusters import Degrees, Libraries, Training, get_architecture
from schedsim.clusters.layer_recompute import kept_tensors, repeated_ops
from schedsim.clusters.layer_spans import backward_ops, op_s
from schedsim.clusters.token_routes import (
    BIAS_KERNELS,
    BIAS_MOVES,
    CAST_KERNELS,
    KERNEL_S,
    PADDING_MOVES,
    ROUTES,
)
from schedsim.errors import SchedsimError

TOKENS = 4096
SHARED = Degrees(fsdp=8, expert=8)


def ops(model="qwen3-30b-a3b", degrees=SHARED, **settings):
    """The ops of a layer by name, and its tensors' sizes."""
    made, _ = layer(model, TOKENS, degrees, seq=TOKENS, **settings)
    return {op.name: op for op in (*made.forward, *made.backward)}, made.sizes


def moved(found, name):
    """The bytes that an op and its parts move."""
    parts = {"combined": ("combined.wide",), "combined'": ()}[name]
    if name.endswith("'"):
        parts = [one for one in found if one.startswith(f"{name}.") or one.endswith("d.scores#0")]
    return sum(found[one].moved_bytes for one in (name, *parts) if one in found)


@pytest.mark.parametrize("routes", ROUTES)
def test_what_sorts_and_weighs_moves_its_bytes(routes):
    """For each byte of the routed tokens, of which each token has one for each expert."""
    found, sizes = ops(libraries=Libraries(routes=routes))
    route, model = ROUTES[routes], get_architecture("qwen3-30b-a3b")
    routed = TOKENS * model.experts.num_active * model.hidden * 2
    whole = TOKENS * model.hidden * 2
    assert sizes["sent"] == routed
    assert found["sent"].moved_bytes == route.sent * routed
    assert moved(found, "combined") == route.combined * routed + whole
    assert moved(found, "combined'") == route.combined_back * routed + whole
    assert found["sent'"].moved_bytes == route.sent_back * routed
    assert found["sent"].link_s == pytest.approx(route.kernels * KERNEL_S)


def wide_at_once(**settings):
    """The largest number of tensors of the outputs' size in fp32 that a backward has at once."""
    made, training = layer("qwen3-30b-a3b", TOKENS, SHARED, seq=TOKENS, **settings)
    size = 2 * made.sizes["returned"]
    again = repeated_ops(made, kept_tensors(made, "full", training), training)
    ops = [op for op, _ in backward_ops(made, again, training)]
    last = {tensor: k for k, op in enumerate(ops) for tensor in (*op.reads, *op.writes)}
    live, most = set(), 0
    for k, op in enumerate(ops):
        live |= set(op.writes)
        most = max(most, sum(made.sizes[one] == size for one in live))
        live = {one for one in live if last[one] > k}
    return most


def test_outputs_that_are_weighed_in_fp32_are_kept_so():
    """Eager layers keep them, compiled ones 16 bits; Megatron weighs before the last product."""
    found, sizes = ops(libraries=Libraries(routes="padded"))
    assert sizes["combined.wide"] == 2 * sizes["returned"]
    assert "combined.wide" in found["combined'.outputs"].reads
    for settings, reads in (({"compiled": True}, True), ({"state": "megatron"}, False)):
        found, sizes = ops(**settings)
        assert "combined.wide" not in sizes
        assert ("returned" in found["combined'"].reads) == reads


@pytest.mark.parametrize("regather", [False, True])
def test_megatron_sends_tokens_once(regather):
    """What arrives is kept; only sequences that tensor-parallel ranks share are gathered again."""
    degrees = Degrees(tensor=2, fsdp=4, expert=4)
    made, training = layer(
        *("mixtral-8x7b", TOKENS, degrees), seq=TOKENS, state="megatron", regather=regather
    )
    kept = kept_tensors(made, "none", training)
    again = {op.name for op in repeated_ops(made, kept, training)}
    read = {tensor for op in made.backward for tensor in op.reads}
    assert "arrived" in kept & read
    assert not {"sent", "returned", "e.down"} & read
    assert again == ({"n1.whole", "n2.whole"} if regather else set())


def test_the_api_of_hybridep_takes_longer_than_its_kernels():
    """0.27 ms to the experts and 0.09 back; backward the other way round."""
    degrees = Degrees(fsdp=16, expert=16)
    words = {"degrees": degrees, "state": "megatron", "dispatcher": "deepep"}
    plain, _ = ops(**words)
    found, _ = ops(**words, libraries=Libraries(routes="hybridep"))
    for name, more_s in (
        ("arrived", 0.27e-3),
        ("returned", 0.09e-3),
        ("returned'", 0.27e-3),
        ("arrived'", 0.09e-3),
    ):
        assert found[name].link_s - plain[name].link_s == pytest.approx(more_s)


@pytest.mark.parametrize(
    ("libraries", "tensors"),
    [
        (Libraries(), 4),  # the outputs, the gradient, both products
        (Libraries(traced=True), 3),  # the outputs are gone before the second product
        (Libraries(routes="product"), 2),  # the outputs, and their gradient
        (Libraries(routes="deepep"), 0),
    ],
)
def test_how_many_tensors_in_fp32_a_backward_has_at_once(libraries, tensors):
    """In the order of autograd's formulas, which a traced graph has too."""
    assert wide_at_once(libraries=libraries) == tensors


def test_autograd_multiplies_with_the_outputs_first():
    """PyTorch's own trace: the outputs in fp32 are last read before the product with the scores."""
    torch = pytest.importorskip("torch")
    from torch.fx.experimental.proxy_tensor import make_fx

    def weighing(outputs, scores):
        weighed = (outputs.to(torch.float32) * scores.reshape(-1, 1)).to(outputs.dtype)
        return torch.autograd.grad(weighed.sum(), (outputs, scores))

    outputs = torch.randn(4, 3, dtype=torch.bfloat16, requires_grad=True)
    scores = torch.randn(4, requires_grad=True)
    nodes = list(make_fx(weighing)(outputs, scores).graph.nodes)
    wide = next(node for node in nodes if "_to_copy" in node.name)
    products = [node for node in nodes if node.target is torch.ops.aten.mul.Tensor]
    assert [wide in node.args for node in products] == [True, True, False]


def test_megatron_casts_the_rows_of_each_expert():
    """To 8 bits, before both products forward, and both gradients backward."""
    plain, _ = ops(state="megatron", compiled=True)
    low, _ = ops(state="megatron", compiled=True, float8=True)
    local = 128 // 8
    for name in ("sent", "sent'"):
        more = low[name].link_s - plain[name].link_s
        assert more == pytest.approx(2 * CAST_KERNELS * local * KERNEL_S)


def test_megatron_pads_the_rows_of_each_expert():
    """In 8 bits: copied in before the first product and out after the last, and back."""
    plain, sizes = ops(state="megatron", compiled=True)
    low, _ = ops(state="megatron", compiled=True, float8=True)
    for name in ("sent", "combined", "combined'", "sent'"):
        more = low[name].moved_bytes - plain[name].moved_bytes
        assert more == PADDING_MOVES * sizes["sent"]


def test_megatron_adds_biases_expert_by_expert():
    """gpt-oss has them, and Qwen 3 has none."""
    found, sizes = ops("gpt-oss-20b", state="megatron", compiled=True)
    route, local = ROUTES["fused"], 32 // 8
    moved = (route.combined + BIAS_MOVES[0]) * sizes["returned"] + sizes["combined"]
    assert found["combined"].moved_bytes == moved
    assert found["combined"].link_s == pytest.approx(BIAS_KERNELS[0] * local * KERNEL_S)
    assert found["combined'"].link_s == pytest.approx(BIAS_KERNELS[1] * local * KERNEL_S)


def test_a_grouped_product_fills_its_tiles():
    """Half a tile of 128 rows more for each expert, but not in the gradient of weights."""
    found, _ = ops(degrees=Degrees())
    model = get_architecture("qwen3-30b-a3b")
    rows = TOKENS * model.experts.num_active
    flops = 2.0 * rows * model.hidden * model.experts.width
    more = model.experts.num_routed * 64 / rows
    assert found["e.gate"].flops == pytest.approx(flops * (1 + more))
    assert found["e.gate'"].flops == pytest.approx(flops * (2 + more))
    weights = model.experts.num_routed * model.hidden * model.experts.width * 2
    assert found["e.gate"].moved_bytes > weights


def test_the_dispatcher_sets_the_seconds_of_an_exchange():
    """A copy for each expert, or one for each node."""
    degrees = Degrees(fsdp=32, expert=32)
    copies, sizes = ops(degrees=degrees)
    once, _ = ops(degrees=degrees, dispatcher="deepep")
    model = get_architecture("qwen3-30b-a3b")
    held = TOKENS * model.hidden * 2
    for name in ("arrived", "returned", "returned'", "arrived'"):
        assert op_s(copies[name], FABRIC) == FABRIC.all_to_all_s(sizes["sent"], 32, 32)
        assert op_s(once[name], FABRIC) == FABRIC.dispatch_s(held, 32, 32, model.experts)


def test_the_rank_with_the_most_tokens_is_waited_for():
    """Its products and exchanges are larger; what is sent and added up is not."""
    even, before = ops(compiled=True)
    found, sizes = ops(compiled=True, uneven=1.5)
    for name in ("arrived", "e.gate", "e.act", "e.down"):
        assert sizes[name] == 1.5 * before[name]
    for name in ("sent", "returned", "combined"):
        assert sizes[name] == before[name]
    for name in ("arrived", "returned", "returned'", "arrived'"):
        assert found[name].link_s == FABRIC.all_to_all_s(1.5 * before["arrived"], 8, 8)
    assert found["sent"].moved_bytes == even["sent"].moved_bytes
    _, alone = ops(degrees=Degrees(), compiled=True, uneven=1.5)
    assert alone["e.gate"] == ops(degrees=Degrees(), compiled=True)[1]["e.gate"]


@pytest.mark.parametrize("value", [0.5, float("inf"), float("nan"), True, "2"])
def test_what_is_no_share_of_tokens_is_refused(value):
    """The message names the option, the value and one that is understood."""
    with pytest.raises(SchedsimError, match=f"--uneven {value!r}") as caught:
        Training(uneven=value).check(get_architecture("mixtral-8x7b"), SHARED)
    assert "1.5" in caught.value.hint
    with pytest.raises(SchedsimError, match="--uneven changes nothing"):
        Training(uneven=1.5).check(get_architecture("llama3-8b"), Degrees())
