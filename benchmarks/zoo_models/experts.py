"""Mixtures of experts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .decoders import causal
from .subject import Subject, entry


@entry("mixture of experts", "transformers")
def mixtral() -> Subject:
    return causal("Mixtral", num_local_experts=4, num_experts_per_tok=2, output_router_logits=True)


@entry("mixture of experts", "transformers")
def mixtral_bf16() -> Subject:
    return causal("Mixtral", torch.bfloat16, num_local_experts=4, num_experts_per_tok=2)


@entry("mixture of experts", "transformers")
def qwen3_moe() -> Subject:
    return causal(
        "Qwen3Moe", head_dim=8, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2
    )


@entry("mixture of experts", "transformers")
def deepseek_v3() -> Subject:
    return causal(
        "DeepseekV3",
        moe_intermediate_size=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=16,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=8,
        v_head_dim=8,
        num_key_value_heads=4,
    )


@entry("mixture of experts", "transformers")
def olmoe() -> Subject:
    return causal("Olmoe", num_experts=4, num_experts_per_tok=2, output_router_logits=True)


class _Experts(nn.Module):
    """Tokens go to the expert of the largest gate, found with `nonzero`, as Switch has it."""

    def __init__(self, width: int = 24, num: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(width, num)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Dropout(0.1), nn.Linear(48, width))
            for _ in range(num)
        )

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        weight, chosen = self.gate(flat).softmax(-1).max(-1)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            rows = (chosen == i).nonzero()[:, 0]
            out = out.index_add(0, rows, expert(flat[rows]) * weight[rows, None])
        return x + out.view_as(x)


@entry("mixture of experts")
def switch_nonzero() -> Subject:
    model = nn.Sequential(*(_Experts() for _ in range(3)), nn.Linear(24, 8))
    x, y = torch.randn(4, 32, 24), torch.randn(4, 32, 8)
    return Subject(model, (x,), (y,), nn.functional.mse_loss)


class _Dense(nn.Module):
    """Every expert computes every token, weighted by the gate: the soft mixture."""

    def __init__(self, width: int = 24, num: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(width, num)
        self.up = nn.Parameter(torch.randn(num, width, 48) / 5)
        self.down = nn.Parameter(torch.randn(num, 48, width) / 7)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.gate(x).softmax(-1)
        weight = nn.functional.dropout(weight, 0.1, self.training)
        hidden = torch.einsum("btd,edh->bteh", x, self.up).relu()
        return x + torch.einsum("bteh,ehd,bte->btd", hidden, self.down, weight)


@entry("mixture of experts")
def soft_experts() -> Subject:
    model = nn.Sequential(*(_Dense() for _ in range(4)))
    x, y = torch.randn(4, 32, 24), torch.randn(4, 32, 24)
    return Subject(model, (x,), (y,), nn.functional.mse_loss)
