"""Speech and sound."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .encoders import configured
from .subject import Subject, entry


@entry("audio", "transformers")
def whisper() -> Subject:
    sizes = {
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "num_mel_bins": 8,
        "max_source_positions": 32,
        "max_target_positions": 32,
        "decoder_start_token_id": 1,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dropout": 0.1,
        "suppress_tokens": None,
        "begin_suppress_tokens": None,
    }
    model = configured("WhisperForConditionalGeneration", "WhisperConfig", **sizes)
    labels = torch.randint(3, 160, (2, 12))
    return Subject(model, keywords={"input_features": torch.randn(2, 8, 64), "labels": labels})


def _speech(model: str, config: str, **more: object) -> Subject:
    sizes = {
        "conv_dim": (16, 16),
        "conv_kernel": (10, 3),
        "conv_stride": (5, 2),
        "num_conv_layers": 2,
        "num_feat_extract_layers": 2,
        "feat_extract_norm": "group",
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4,
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "mask_time_length": 2,
        "mask_time_prob": 0.1,
        "layerdrop": 0.0,
        "ctc_zero_infinity": True,
    }
    made = configured(model, config, **{**sizes, **more})
    labels = torch.randint(1, 32, (2, 5))
    return Subject(made, keywords={"input_values": torch.randn(2, 600), "labels": labels})


@entry("audio", "transformers")
def wav2vec2() -> Subject:
    return _speech("Wav2Vec2ForCTC", "Wav2Vec2Config", apply_spec_augment=False)


@entry("audio", "transformers")
def wav2vec2_masked() -> Subject:
    return _speech("Wav2Vec2ForCTC", "Wav2Vec2Config")


@entry("audio", "transformers")
def hubert() -> Subject:
    return _speech("HubertForCTC", "HubertConfig", apply_spec_augment=False)


@entry("audio", "transformers")
def audio_spectrogram() -> Subject:
    model = configured(
        "ASTForAudioClassification",
        "ASTConfig",
        max_length=32,
        num_mel_bins=16,
        patch_size=8,
        frequency_stride=8,
        time_stride=8,
        hidden_dropout_prob=0.1,
    )
    y = torch.randint(0, 5, (4,))
    return Subject(model, keywords={"input_values": torch.randn(4, 32, 16), "labels": y})


class _Recogniser(nn.Module):
    """Convolutions, a bidirectional GRU and CTC, after Deep Speech 2 (Amodei et al. 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(1, 4, (7, 3), (2, 1), (3, 1)),
            nn.BatchNorm2d(4),
            nn.Hardtanh(0, 20, True),
            nn.Conv2d(4, 4, (7, 3), (2, 1), (3, 1)),
            nn.BatchNorm2d(4),
            nn.Hardtanh(0, 20, True),
        )
        self.rnn = nn.GRU(16, 16, 2, dropout=0.2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(32, 20)

    def forward(self, x: Tensor) -> Tensor:
        x = self.convs(x[:, None])
        x, _ = self.rnn(x.flatten(1, 2).transpose(1, 2))
        return self.head(x).log_softmax(-1).transpose(0, 1)


@entry("audio")
def deep_speech() -> Subject:
    target = torch.randint(1, 20, (4, 6))

    def loss(found: Tensor, target: Tensor) -> Tensor:
        lengths = torch.full((4,), found.shape[0]), torch.full((4,), 6)
        return nn.functional.ctc_loss(found, target, *lengths, zero_infinity=True)

    return Subject(_Recogniser(), (torch.randn(4, 16, 40),), (target,), loss)


class _Gated(nn.Module):
    """Dilated causal convolutions with gates (van den Oord et al. 2016, WaveNet)."""

    def __init__(self, dilation: int, width: int = 16) -> None:
        super().__init__()
        self.pad = nn.ConstantPad1d((dilation, 0), 0.0)
        self.conv = nn.utils.parametrizations.weight_norm(
            nn.Conv1d(width, 2 * width, 2, dilation=dilation)
        )
        self.out = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.conv(self.pad(x)).chunk(2, 1)
        return x + self.out(torch.tanh(value) * torch.sigmoid(gate))


@entry("audio")
def wavenet() -> Subject:
    model = nn.Sequential(
        nn.Conv1d(1, 16, 1), *(_Gated(2**i) for i in range(5)), nn.Conv1d(16, 32, 1)
    )
    x, y = torch.randn(4, 1, 128), torch.randint(0, 32, (4, 128))
    return Subject(model, (x,), (y,), nn.functional.cross_entropy)


class _SpectralLoss(nn.Module):
    """Distances of magnitudes at several resolutions, as of vocoders."""

    def forward(self, found: Tensor, wanted: Tensor) -> Tensor:
        total = found.new_zeros(())
        for size in (32, 64):
            window = torch.hann_window(size)
            sides = [
                torch.stft(x, size, size // 4, window=window, return_complex=True).abs()
                for x in (found, wanted)
            ]
            total = total + nn.functional.l1_loss(*sides)
            total = total + nn.functional.l1_loss(*(s.clamp(min=1e-3).log() for s in sides))
        return total


@entry("audio")
def vocoder_stft() -> Subject:
    model = nn.Sequential(
        nn.ConvTranspose1d(8, 16, 8, 4, 2),
        nn.LeakyReLU(0.1, True),
        nn.ConvTranspose1d(16, 8, 8, 4, 2),
        nn.LeakyReLU(0.1, True),
        nn.Conv1d(8, 1, 7, padding=3),
        nn.Tanh(),
        nn.Flatten(),
    )
    return Subject(model, (torch.randn(4, 8, 24),), (torch.randn(4, 384),), _SpectralLoss())
