"""Heads, losses and feed-forward layers in chunks of the tokens."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from schedsim.validation.models import build_model  # noqa: E402
from schedsim.validation.op_level.scheduled_ops import ScheduledOps  # noqa: E402
from schedsim.validation.ways.chunk import auto_chunks, chunked, read_chunks  # noqa: E402
from step_models import TinyGPT, TinyResNet, make_step, token_loss  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

LEVELS = ("op", "block")
SIZES = {"layers": 2, "hidden": 32, "heads": 2, "vocab": 499, "seq": 32, "batch": 4}
MODELS = {
    "gpt2": {**SIZES, "dropout": 0.0},
    "llama2-7b": {**SIZES, "ffn": 88},
}


def a_model(name):
    """A small one, the same each time."""
    torch.manual_seed(0)
    return build_model(name, **MODELS[name])


def gradients(model, step):
    """Loss and gradients, from none."""
    model.zero_grad()
    loss = step()
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


def close(one, two, dtype=torch.float32):
    """Equal within rounding: relative to the largest gradient of each parameter."""
    tolerance = 2e-2 if dtype is torch.bfloat16 else 2e-5
    return all(
        (one[k].float() - two[k].float()).abs().max()
        <= tolerance * one[k].float().abs().max() + 1e-9
        for k in one
    )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("chunks", [{"head": 1}, {"head": 5}, {"mlp": 3}, {"head": 5, "mlp": 3}])
@pytest.mark.parametrize("unrolled", [True, False])
def test_a_model_in_chunks_is_the_model_within_rounding(name, chunks, unrolled):
    work = a_model(name)
    plain_loss, plain = gradients(work.model, lambda: work.loss(work.model(*work.inputs)))
    model, loss = chunked(work.model, work.loss, work.inputs, {}, chunks, unrolled=unrolled)
    again = work.model[1].forward  # the model itself is not touched
    assert not hasattr(again.__self__, "_num_chunks")
    assert model.state_dict().keys() == work.model.state_dict().keys()
    found_loss, found = gradients(work.model, lambda: loss(model(*work.inputs)))
    torch.testing.assert_close(found_loss, plain_loss)
    assert close(plain, found)
    if chunks == {"head": 1}:
        assert torch.equal(found_loss, plain_loss)
        assert all(torch.equal(plain[k], found[k]) for k in plain)


@pytest.mark.parametrize(
    ("name", "level"), [("gpt2", "op"), ("gpt2", "block"), ("llama2-7b", "block")]
)
def test_a_chunked_step_fits_where_the_plain_one_does_not(name, level):
    """The measured peak is the predicted one, with the head's chunks in it."""
    work = a_model(name)
    chunk = {"head": 8, "mlp": 4} if level == "block" else {"head": 8}
    options = {"level": level, "effort": 0.2}
    with pytest.raises(schedsim.InfeasibleBudgetError, match="least budget") as refused:
        schedsim.rematerialize(work.model, work.inputs, "10%", work.loss, **options)
    assert "chunk" not in refused.value.hint  # so few tokens are one chunk by themselves
    budget = int(0.95 * refused.value.min_feasible_bytes)
    module = schedsim.rematerialize(
        work.model, work.inputs, budget, work.loss, chunk=chunk, **options
    )
    _, plain = gradients(work.model, lambda: work.loss(work.model(*work.inputs)))
    for p in work.model.parameters():
        p.grad = None
    with schedsim.watch(module) as seen:
        loss = module(*work.inputs)
        loss.backward()
    assert seen.measured_bytes[0] <= module.plan.peak_bytes <= budget
    assert seen.measured_bytes[0] >= 0.97 * module.plan.peak_bytes
    assert close(plain, {name: p.grad for name, p in work.model.named_parameters()})
    assert module.plan.setting.step.chunk == chunk
    (way,) = module.ways
    assert way.status == "chosen"
    assert not way.same_bits
    assert way.peak_bytes == module.plan.peak_bytes
    assert "head in 8 chunks" in module.report()


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_a_schedule_changes_no_bit_of_the_chunked_model(level):
    work = a_model("gpt2")
    chunk = {"head": 5, "mlp": 3}
    found = []
    for budget in ("100%", "62%"):
        module = schedsim.rematerialize(
            work.model, work.inputs, budget, work.loss, level=level, chunk=chunk, effort=0.2
        )
        found.append(gradients(work.model, lambda m=module: m(*work.inputs)))
    (one, first), (two, second) = found
    assert torch.equal(one, two)
    assert all(torch.equal(first[k], second[k]) for k in first)


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_a_model_and_a_loss_of_ones_own(level):
    """The head is found behind any loss that is a cross entropy of the logits."""
    torch.manual_seed(0)
    model, inputs, loss = TinyGPT(dropout=0.0), (torch.randint(0, 61, (2, 16)),) * 2, token_loss
    options = {"level": level, "effort": 0.2, "chunk": {"head": 4, "mlp": 2}}
    module = schedsim.rematerialize(model, inputs, "150%", loss, **options)
    plain = gradients(model, lambda: loss(model(inputs[0]), inputs[1]))
    found = gradients(model, lambda: module(*inputs))
    torch.testing.assert_close(found[0], plain[0])
    assert close(plain[1], found[1])


def test_under_autocast():
    work = a_model("gpt2")
    with torch.autocast("cpu", torch.bfloat16):
        model, loss = chunked(work.model, work.loss, work.inputs, {}, {"head": 4}, unrolled=False)
        plain_loss, plain = gradients(work.model, lambda: work.loss(work.model(*work.inputs)))
        found_loss, found = gradients(work.model, lambda: loss(model(*work.inputs)))
    torch.testing.assert_close(found_loss, plain_loss, rtol=1e-3, atol=1e-3)
    assert close(plain, found, torch.bfloat16)


def test_dropout_in_recomputed_chunks_is_replayed():
    """The second forward of a chunk draws what the first did: its gradients are its own."""
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.5), nn.Linear(32, 8))
    from schedsim.validation.ways.chunked_mlp import in_chunks

    x = torch.randn(12, 8, requires_grad=True)
    found = []
    for unrolled in (True, False):
        torch.manual_seed(5)
        out = in_chunks(mlp, x, tuple(mlp.parameters()), 3, unrolled)
        grads = torch.autograd.grad(out.square().sum(), [x, *mlp.parameters()])
        found.append([out, *grads, torch.rand(1)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("batch", "expected"), [(4, (1, 1)), (12, (3, 3)), (40, (10, 4))])
def test_the_automatic_number_makes_a_chunk_as_large_as_the_hidden_states(batch, expected):
    """499 classes are 16 times 32, the inner width 4 times; 128 tokens are the least."""
    torch.manual_seed(0)
    work = build_model("gpt2", **{**MODELS["gpt2"], "batch": batch})
    given = work.model, work.loss, work.inputs, {}
    assert tuple(auto_chunks(*given, piece) for piece in ("head", "mlp")) == expected


def _smooth(logits, target):
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), label_smoothing=0.1)


def _probabilities(logits, target):
    return -logits.softmax(-1).flatten(0, 1).gather(1, target.flatten()[:, None]).log().mean()


@pytest.mark.parametrize(
    ("loss", "what"),
    [(_smooth, "smoothes"), (_probabilities, "softmax"), (lambda y, t: y[..., :2].sum(), "cuts")],
)
def test_other_losses_are_refused_with_the_reason(loss, what):
    torch.manual_seed(0)
    model, inputs = TinyGPT(), (torch.randint(0, 61, (2, 16)),) * 2
    with pytest.raises(schedsim.UnsupportedError, match=what):
        chunked(model, loss, inputs, {}, {"head": 2}, unrolled=True)


def test_models_without_the_piece_are_refused_with_the_reason():
    model, inputs, loss = make_step("mlp")
    with pytest.raises(schedsim.UnsupportedError, match="not that of a linear layer called once"):
        chunked(model, loss, inputs, {}, {"head": 2}, unrolled=True)
    torch.manual_seed(0)
    images = torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,))
    with pytest.raises(schedsim.UnsupportedError, match="no feed-forward layers"):
        chunked(TinyResNet(), F.cross_entropy, images, {}, {"mlp": 2}, unrolled=True)
    with pytest.raises(schedsim.SchedsimError, match="chunk='half'"):
        read_chunks("half")


class MixingMLP(nn.Module):
    """Called a feed-forward layer, but it looks at other tokens."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        """Each token less the mean of all."""
        return self.linear(x - x.mean(dim=-2, keepdim=True))


def test_a_layer_that_mixes_tokens_is_found_out():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), MixingMLP())
    x = torch.randn(2, 6, 8)
    with pytest.raises(schedsim.UnsupportedError, match="in chunks the loss"):
        chunked(model, lambda y: y.square().sum(), (x,), {}, {"mlp": 3}, unrolled=True)


@pytest.mark.slow
def test_a_module_level_of_ops_is_what_runs():
    """The head's chunks are one op of the graph, run once."""
    work = a_model("gpt2")
    module = schedsim.rematerialize(
        work.model, work.inputs, "90%", work.loss, level="op", chunk={"head": 4}, effort=0.2
    )
    assert isinstance(module._plans.last.module, ScheduledOps)
    module(*work.inputs).backward()
    heads = {k: n for k, n in module.run_counts.items() if "chunked_cross_entropy" in k}
    assert list(heads.values()) == [1]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "level"), [("gpt2", "block"), ("llama", "op")])
def test_language_models_of_transformers(family, level):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = {"vocab_size": 499, "hidden_size": 32, "num_hidden_layers": 2, "use_cache": False}
    config |= {"num_attention_heads": 2, "max_position_embeddings": 32}
    if family == "gpt2":
        config |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    else:
        config |= {"intermediate_size": 88}
    made = transformers.AutoConfig.for_model(family, **config)
    model = transformers.AutoModelForCausalLM.from_config(made).train()
    ids = torch.randint(499, (4, 32))
    labels = ids.clone()
    labels[0, :9] = -100
    step = {"input_ids": ids, "labels": labels}
    module = schedsim.rematerialize(
        model, step, "75%", level=level, chunk={"head": 8, "mlp": 2}, effort=0.2
    )
    plain = gradients(model, lambda: model(**step).loss)
    for p in model.parameters():
        p.grad = None
    with schedsim.watch(module) as seen:
        loss = module(**step).loss
        loss.backward()
    torch.testing.assert_close(loss, plain[0])
    assert close(plain[1], {name: p.grad for name, p in model.named_parameters()})
    assert 0.97 * module.plan.peak_bytes <= seen.measured_bytes[0] <= module.plan.peak_bytes


def test_a_head_with_a_cap_on_its_logits_is_found_out():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16}
    config = transformers.Gemma2Config(
        vocab_size=99, intermediate_size=64, num_key_value_heads=1, use_cache=False, **sizes
    )
    model = transformers.Gemma2ForCausalLM(config).train()
    with torch.no_grad():
        model.lm_head.weight.mul_(100)  # so that the cap shows
    ids = torch.randint(99, (2, 16))
    with pytest.raises(schedsim.UnsupportedError, match="in chunks the loss"):
        chunked(model, None, (), {"input_ids": ids, "labels": ids}, {"head": 2}, unrolled=True)
