"""Third-party models, which ask values of tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from chains import random_schedule
from schedsim.validation.capture import capture
from storage_tracker import measured_peak

from schedsim import Schedule, simulate

transformers = pytest.importorskip("transformers", reason="transformers is not installed")


def token_loss(output, targets):
    return F.cross_entropy(output.logits.flatten(0, 1), targets.flatten())


def gpt2():
    config = transformers.GPT2Config(
        n_layer=2,
        n_embd=32,
        n_head=2,
        vocab_size=50,
        n_positions=16,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def llama(layers=2, width=32, vocabulary=50, **more):
    config = transformers.LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=width // 16 if width < 4096 else 32,
        vocab_size=vocabulary,
        **more,
    )
    return transformers.LlamaForCausalLM(config)


@pytest.mark.slow
@pytest.mark.parametrize("build", [gpt2, llama])
def test_schedules_of_a_library_model(build):
    """Random schedules: the bits of store-all, gradients of the plain model, the peak foretold."""
    torch.manual_seed(0)
    model = build()
    inputs = torch.randint(0, 50, (2, 16)), torch.randint(0, 50, (2, 16))
    kwargs = {"use_cache": False}
    captured = capture(model, inputs, token_loss, kwargs=kwargs)
    assert captured.front == "direct"  # what it asks of its mask is answered
    torch.manual_seed(1)
    model.zero_grad()
    loss = token_loss(model(inputs[0], **kwargs), inputs[1])
    loss.backward()
    expected = [loss.detach(), *(p.grad.clone() for p in model.parameters())]
    for seed in (None, 0, 1, 2):
        schedule = Schedule.store_all(captured.graph)
        if seed is not None:
            schedule = random_schedule(np.random.default_rng(seed), captured.graph)
        torch.manual_seed(1)
        tracker, loss = measured_peak(captured.module(schedule), inputs, **kwargs)
        got = [loss, *(p.grad for p in model.parameters())]
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
        predicted = simulate(captured.graph, schedule).peak_bytes
        assert abs(tracker.peak_bytes - predicted) <= 0.001 * predicted


def test_the_loss_of_the_model_itself():
    """labels= makes the library compute the loss, and log a warning on the way."""
    model = gpt2()
    tokens = torch.zeros(2, 16, dtype=torch.long)

    class WithLoss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, tokens):
            return self.inner(tokens, labels=tokens, use_cache=False).loss

    captured = capture(WithLoss(), (tokens,))
    assert "inner.transformer.h.0.attn.c_attn.addmm" in captured.graph.op_names
    captured.module(Schedule.store_all(captured.graph))(tokens).backward()


@pytest.mark.slow
def test_layers_of_llama_7b():
    """Four of its 32 layers, in bf16 for CUDA, batch 2 of 4096 tokens, without memory."""
    with torch.device("meta"):
        model = llama(4, 4096, 32000, max_position_embeddings=4096).to(torch.bfloat16)
        tokens = torch.zeros(2, 4096, dtype=torch.long)
    captured = capture(
        model, (tokens, tokens), token_loss, kwargs={"use_cache": False}, kernels="cuda"
    )
    # 202,383,360 parameters a layer, 131,072,000 in each embedding, 4096 in the last norm.
    assert sum(p.numel() for p in model.parameters()) == 4 * 202_383_360 + 262_144_000 + 4096
    assert captured.graph.static_bytes >= 2 * (4 * 202_383_360 + 262_144_000 + 4096)
    assert "model.layers.3.self_attn.efficient_attention" in captured.graph.op_names
