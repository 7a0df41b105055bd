"""Encoders of text, of images and of both."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .subject import Subject, entry
from .torchvision_apart import torchvision

BATCH, LENGTH, WORDS, CLASSES, IMAGE = 4, 40, 160, 5, 32
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "embedding_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "image_size": IMAGE,
    "patch_size": 8,
    "num_labels": CLASSES,
    "pad_token_id": 0,
}


OF_STAGES: dict[str, Any] = {
    "num_hidden_layers": None,
    "num_attention_heads": None,
    "hidden_size": None,
}
"""Left to models whose stages have sizes of their own."""


def words(*, padded: bool = True) -> dict[str, Any]:
    """A padded batch with its mask."""
    ids = torch.randint(3, WORDS, (BATCH, LENGTH))
    mask = torch.ones_like(ids)
    if padded:
        mask[1, 30:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def configured(model: str, config: str, **options: Any) -> Any:
    """A class of transformers on its configuration; a size of ``None`` is left to it."""
    import transformers

    sizes = {name: size for name, size in {**SIZES, **options}.items() if size is not None}
    return getattr(transformers, model)(getattr(transformers, config)(**sizes))


@entry("encoder", "transformers")
def bert() -> Subject:
    batch = words()
    labels = batch["input_ids"].clone()
    labels[:, ::2] = -100
    return Subject(
        configured("BertForMaskedLM", "BertConfig"), keywords={**batch, "labels": labels}
    )


@entry("encoder", "transformers")
def roberta_classifier() -> Subject:
    labels = torch.randint(0, CLASSES, (BATCH,))
    model = configured("RobertaForSequenceClassification", "RobertaConfig")
    return Subject(model, keywords={**words(), "labels": labels})


@entry("encoder", "transformers")
def distilbert() -> Subject:
    sizes = {"dim": 32, "hidden_dim": 64, "n_layers": 4, "n_heads": 4}
    labels = torch.randint(0, CLASSES, (BATCH, LENGTH))
    model = configured("DistilBertForTokenClassification", "DistilBertConfig", **sizes)
    return Subject(model, keywords={**words(), "labels": labels})


@entry("encoder", "transformers")
def electra() -> Subject:
    labels = torch.randint(0, 2, (BATCH, LENGTH))
    model = configured("ElectraForPreTraining", "ElectraConfig")
    return Subject(model, keywords={**words(), "labels": labels})


@entry("encoder", "transformers")
def deberta() -> Subject:
    sizes = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16}
    labels = torch.randint(0, CLASSES, (BATCH,))
    model = configured("DebertaV2ForSequenceClassification", "DebertaV2Config", **sizes)
    return Subject(model, keywords={**words(), "labels": labels})


@entry("encoder", "transformers")
def albert() -> Subject:
    labels = torch.randint(0, CLASSES, (BATCH,))
    model = configured("AlbertForSequenceClassification", "AlbertConfig", hidden_dropout_prob=0.1)
    return Subject(model, keywords={**words(), "labels": labels})


@entry("encoder", "transformers")
def modernbert() -> Subject:
    batch = words()
    model = configured(
        "ModernBertForMaskedLM", "ModernBertConfig", local_attention=16, mlp_dropout=0.1
    )
    return Subject(model, keywords={**batch, "labels": batch["input_ids"].clone()})


@entry("encoder", "transformers")
def vit() -> Subject:
    model = configured("ViTForImageClassification", "ViTConfig", hidden_dropout_prob=0.1)
    labels = torch.randint(0, CLASSES, (BATCH,))
    pixels = torch.randn(BATCH, 3, IMAGE, IMAGE)
    return Subject(model, keywords={"pixel_values": pixels, "labels": labels})


@entry("encoder", "transformers")
def swin() -> Subject:
    sizes = {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
    model = configured(
        "SwinForImageClassification", "SwinConfig", **sizes, patch_size=4, **OF_STAGES
    )
    labels = torch.randint(0, CLASSES, (BATCH,))
    pixels = torch.randn(BATCH, 3, IMAGE, IMAGE)
    return Subject(model, keywords={"pixel_values": pixels, "labels": labels})


@entry("encoder", "transformers")
def dinov2() -> Subject:
    model = configured("Dinov2ForImageClassification", "Dinov2Config", drop_path_rate=0.1)
    labels = torch.randint(0, CLASSES, (BATCH,))
    pixels = torch.randn(BATCH, 3, IMAGE, IMAGE)
    return Subject(model, keywords={"pixel_values": pixels, "labels": labels})


@entry("encoder", "transformers")
def vit_mae() -> Subject:
    sizes = {
        "decoder_hidden_size": 16,
        "decoder_num_hidden_layers": 2,
        "decoder_num_attention_heads": 2,
        "decoder_intermediate_size": 32,
    }
    model = configured("ViTMAEForPreTraining", "ViTMAEConfig", **sizes)
    return Subject(model, keywords={"pixel_values": torch.randn(BATCH, 3, IMAGE, IMAGE)})


@entry("encoder", "transformers")
def clip() -> Subject:
    tower = {k: SIZES[k] for k in ("hidden_size", "intermediate_size", "num_hidden_layers")} | {
        "num_attention_heads": 4
    }
    text = {**tower, "vocab_size": WORDS, "max_position_embeddings": 64, "eos_token_id": 2}
    vision = {**tower, "image_size": IMAGE, "patch_size": 8}
    model = configured(
        "CLIPModel", "CLIPConfig", text_config=text, vision_config=vision, projection_dim=16
    )
    pixels = torch.randn(BATCH, 3, IMAGE, IMAGE)
    return Subject(model, keywords={**words(), "pixel_values": pixels, "return_loss": True})


@entry("encoder", "torch.nn")
def transformer_encoder() -> Subject:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return Subject(
        model,
        (torch.randn(BATCH, LENGTH, 32),),
        (torch.randn(BATCH, LENGTH, 32),),
        nn.functional.mse_loss,
    )


@entry("encoder", "timm")
def timm_deit() -> Subject:
    torchvision()
    import timm

    model = timm.create_model(
        "deit_tiny_patch16_224",
        img_size=IMAGE,
        depth=4,
        embed_dim=32,
        num_heads=4,
        drop_rate=0.1,
        drop_path_rate=0.1,
        num_classes=CLASSES,
    )
    return Subject(
        model,
        (torch.randn(BATCH, 3, IMAGE, IMAGE),),
        (torch.randint(0, CLASSES, (BATCH,)),),
        nn.functional.cross_entropy,
    )
