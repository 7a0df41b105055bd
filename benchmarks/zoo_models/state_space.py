"""State-space models and linear attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .decoders import causal
from .subject import Subject, entry


@entry("state-space", "transformers")
def mamba() -> Subject:
    subject = causal("Mamba", state_size=4, time_step_rank=4, num_hidden_layers=3)
    return _shorter(subject, 12)


@entry("state-space", "transformers")
def mamba2() -> Subject:
    sizes = {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8}
    return _shorter(causal("Mamba2", **sizes, num_hidden_layers=3), 16)


@entry("state-space", "transformers")
def rwkv() -> Subject:
    sizes = {"attention_hidden_size": 32, "context_length": 32, "num_hidden_layers": 3}
    return _shorter(causal("Rwkv", **sizes), 10)


@entry("state-space", "transformers")
def recurrent_gemma() -> Subject:
    return _shorter(causal("RecurrentGemma", lru_width=32, attention_window_size=16), 16)


def _shorter(subject: Subject, length: int) -> Subject:
    subject.keywords = {k: v[:, :length].clone() for k, v in subject.keywords.items()}
    return subject


class _S4D(nn.Module):
    """A diagonal state-space layer by its kernel and FFTs (Gu et al. 2022, S4D)."""

    def __init__(self, width: int = 16, states: int = 8) -> None:
        super().__init__()
        self.log_step = nn.Parameter(torch.rand(width) * 2 - 4)
        self.decay = nn.Parameter(torch.log(0.5 * torch.ones(width, states)))
        self.turn = nn.Parameter(torch.pi * torch.arange(states).float().repeat(width, 1))
        self.weight = nn.Parameter(torch.randn(width, states, 2) * 0.5**0.5)
        self.direct, self.mix = nn.Parameter(torch.randn(width)), nn.Linear(width, 2 * width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        pole = torch.complex(-self.decay.exp(), self.turn) * self.log_step.exp()[:, None]
        powers = torch.exp(pole[..., None] * torch.arange(length))
        weight = torch.view_as_complex(self.weight) * (pole.exp() - 1.0) / pole
        weight = weight * self.log_step.exp()[:, None]
        kernel = 2 * torch.einsum("dn,dnl->dl", weight, powers).real
        u = x.transpose(1, 2)
        found = torch.fft.irfft(
            torch.fft.rfft(kernel, n=2 * length) * torch.fft.rfft(u, n=2 * length), n=2 * length
        )[..., :length]
        found = self.drop(nn.functional.gelu(found + u * self.direct[:, None]))
        return x + nn.functional.glu(self.mix(found.transpose(1, 2)), -1)


@entry("state-space")
def s4d() -> Subject:
    model = nn.Sequential(*(_S4D() for _ in range(4)))
    x, y = torch.randn(4, 48, 16), torch.randn(4, 48, 16)
    return Subject(model, (x,), (y,), nn.functional.mse_loss)


class _LinearAttention(nn.Module):
    """Attention by cumulated sums (Katharopoulos et al. 2020)."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.drop, self.out = nn.Dropout(0.1), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        q, k = nn.functional.elu(q) + 1, nn.functional.elu(k) + 1
        memory = torch.einsum("bti,btj->btij", k, v).cumsum(1)
        found = torch.einsum("bti,btij->btj", q, memory) / (q * k.cumsum(1)).sum(-1, keepdim=True)
        return x + self.drop(self.out(found))


@entry("state-space")
def linear_attention() -> Subject:
    model = nn.Sequential(*(_LinearAttention() for _ in range(4)))
    x, y = torch.randn(4, 32, 24), torch.randn(4, 32, 24)
    return Subject(model, (x,), (y,), nn.functional.mse_loss)
