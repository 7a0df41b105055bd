"""Recurrent networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .subject import Subject, entry

WORDS = 60


class _Language(nn.Module):
    """Words, a recurrent net with dropout between its layers, words."""

    def __init__(self, kind: type[nn.RNNBase], **options: object) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 24)
        self.inner = kind(24, 32, 2, dropout=0.3, batch_first=True, **options)
        self.head = nn.Linear(64 if options.get("bidirectional") else 32, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        found, _ = self.inner(self.embed(words))
        return self.head(found).flatten(0, 1)


def _spoken(model: nn.Module) -> Subject:
    words = torch.randint(0, WORDS, (6, 24))
    return Subject(model, (words,), (words.roll(-1, 1).flatten(),), nn.functional.cross_entropy)


@entry("recurrent", "torch.nn")
def lstm() -> Subject:
    return _spoken(_Language(nn.LSTM))


@entry("recurrent", "torch.nn")
def gru_bidirectional() -> Subject:
    return _spoken(_Language(nn.GRU, bidirectional=True))


@entry("recurrent", "torch.nn")
def rnn_relu() -> Subject:
    return _spoken(_Language(nn.RNN, nonlinearity="relu"))


class _EncoderThenGRU(nn.Module):
    """A transformer's encoder followed by a GRU."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(24, 4, 48, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.gru, self.head = nn.GRU(24, 24, batch_first=True), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        found, _ = self.gru(self.encoder(x))
        logits: Tensor = self.head(found[:, -1])
        return logits


@entry("recurrent", "torch.nn")
def encoder_then_gru() -> Subject:
    x, y = torch.randn(6, 24, 24), torch.randint(0, 4, (6,))
    return Subject(_EncoderThenGRU(), (x,), (y,), nn.functional.cross_entropy)


class _Packed(nn.Module):
    """Sequences of several lengths, packed."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner = nn.Embedding(WORDS, 24), nn.LSTM(24, 24, batch_first=True)
        self.head = nn.Linear(24, 4)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        pack = nn.utils.rnn.pack_padded_sequence(
            self.embed(words), lengths, batch_first=True, enforce_sorted=False
        )
        _, (last, _) = self.inner(pack)
        logits: Tensor = self.head(nn.functional.dropout(last[-1], 0.2))
        return logits


@entry("recurrent", "torch.nn")
def lstm_packed() -> Subject:
    lengths = torch.tensor([20, 5, 12, 9, 20, 3])
    words, y = torch.randint(0, WORDS, (6, 20)), torch.randint(0, 4, (6,))
    return Subject(_Packed(), (words, lengths), (y,), nn.functional.cross_entropy)


class _MinimalCell(nn.Module):
    """A cell written out, unrolled in forward; its norms and dropout are shared over time."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.new = nn.Linear(40, 24), nn.Linear(40, 24)
        self.norm, self.drop, self.head = nn.LayerNorm(24), nn.Dropout(0.2), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 24)
        for given in x.unbind(1):
            both = torch.cat([given, state], 1)
            gate = torch.sigmoid(self.gate(both))
            state = self.norm(gate * state + (1 - gate) * self.drop(torch.tanh(self.new(both))))
        logits: Tensor = self.head(state)
        return logits


@entry("recurrent")
def minimal_gated_cell() -> Subject:
    x, y = torch.randn(6, 14, 16), torch.randint(0, 4, (6,))
    return Subject(_MinimalCell(), (x,), (y,), nn.functional.cross_entropy)
