"""Encoders with a decoder that looks at them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .encoders import words
from .subject import Subject, entry

WORDS, LENGTH, BATCH = 160, 40, 4
SIZES = {
    "vocab_size": WORDS,
    "d_model": 32,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": 2,
    "use_cache": False,
}


def translating(model: str, config: str, **options: Any) -> Subject:
    """A class of transformers that translates."""
    import transformers

    made = getattr(transformers, model)(getattr(transformers, config)(**{**SIZES, **options}))
    return Subject(made, keywords={**words(), "labels": torch.randint(3, WORDS, (BATCH, 24))})


@entry("encoder-decoder", "transformers")
def t5() -> Subject:
    sizes = {"d_ff": 64, "d_kv": 8, "num_layers": 3, "num_heads": 4}
    return translating("T5ForConditionalGeneration", "T5Config", **sizes)


@entry("encoder-decoder", "transformers")
def bart() -> Subject:
    return translating("BartForConditionalGeneration", "BartConfig", attention_dropout=0.1)


@entry("encoder-decoder", "transformers")
def bart_layerdrop() -> Subject:
    return translating("BartForConditionalGeneration", "BartConfig", encoder_layerdrop=0.3)


@entry("encoder-decoder", "transformers")
def marian() -> Subject:
    return translating("MarianMTModel", "MarianConfig")


@entry("encoder-decoder", "transformers")
def pegasus() -> Subject:
    return translating("PegasusForConditionalGeneration", "PegasusConfig")


class _Translator(nn.Module):
    """torch's own transformer, with a causal mask and padding, as its tutorial has it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 32)
        self.inner = nn.Transformer(32, 4, 2, 2, 64, dropout=0.1, batch_first=True)
        self.head = nn.Linear(32, WORDS)

    def forward(self, source: Tensor, target: Tensor, padding: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        found = self.inner(
            self.embed(source), self.embed(target), tgt_mask=mask, src_key_padding_mask=padding
        )
        logits: Tensor = self.head(found)
        return logits


@entry("encoder-decoder", "torch.nn")
def nn_transformer() -> Subject:
    batch = words()
    target = torch.randint(3, WORDS, (BATCH, 24))

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())

    padding = batch["attention_mask"] == 0
    return Subject(_Translator(), (batch["input_ids"], target, padding), (target,), loss)


class _Seq2Seq(nn.Module):
    """A GRU that reads and one that writes, with additive attention (Bahdanau et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 24)
        self.reader = nn.GRU(24, 16, bidirectional=True, batch_first=True)
        self.writer = nn.GRUCell(24 + 32, 32)
        self.query, self.key, self.score = nn.Linear(32, 16), nn.Linear(32, 16), nn.Linear(16, 1)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(32, WORDS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        read, last = self.reader(self.drop(self.embed(source)))
        state, keys = torch.cat([*last], 1), self.key(read)
        logits = []
        for word in self.drop(self.embed(target)).unbind(1):
            weights = self.score(torch.tanh(keys + self.query(state)[:, None])).softmax(1)
            state = self.writer(torch.cat([word, (weights * read).sum(1)], 1), state)
            logits.append(self.head(self.drop(state)))
        return torch.stack(logits, 1)


@entry("encoder-decoder")
def seq2seq_attention() -> Subject:
    source, target = torch.randint(3, WORDS, (BATCH, 20)), torch.randint(3, WORDS, (BATCH, 8))

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())

    return Subject(_Seq2Seq(), (source, target), (target,), loss)
