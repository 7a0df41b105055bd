"""Convolutional networks, segmentation, detection and diffusion."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .encoders import OF_STAGES, configured
from .subject import Subject, entry
from .torchvision_apart import torchvision as torchvision_apart

BATCH, IMAGE, CLASSES = 4, 32, 5


def classified(model: nn.Module, size: int = IMAGE) -> Subject:
    """`model` with images and their classes."""
    x, y = torch.randn(BATCH, 3, size, size), torch.randint(0, CLASSES, (BATCH,))
    return Subject(model, (x,), (y,), nn.CrossEntropyLoss(label_smoothing=0.1))


# -- convolutional --------------------------------------------------------------------------------


@entry("convolutional", "torchvision")
def resnet18() -> Subject:
    torchvision = torchvision_apart()
    block = torchvision.models.resnet.BasicBlock
    model = torchvision.models.ResNet(block, [1, 1, 1, 1], num_classes=CLASSES, width_per_group=64)
    return classified(model)


@entry("convolutional", "torchvision")
def densenet() -> Subject:
    torchvision = torchvision_apart()
    model = torchvision.models.DenseNet(8, (2, 2, 2), 8, drop_rate=0.1, num_classes=CLASSES)
    return classified(model, 64)


@entry("convolutional", "torchvision")
def mobilenet_v3() -> Subject:
    torchvision = torchvision_apart()
    model = torchvision.models.mobilenet_v3_small(width_mult=0.25, num_classes=CLASSES)
    return classified(model, 64)


@entry("convolutional", "torchvision")
def squeezenet() -> Subject:
    torchvision = torchvision_apart()
    model = torchvision.models.squeezenet1_1(num_classes=CLASSES)
    return classified(model, 64)


@entry("convolutional", "torchvision")
def shufflenet() -> Subject:
    torchvision = torchvision_apart()
    sizes = [1, 1, 1], [8, 16, 32, 64, 64]
    return classified(torchvision.models.ShuffleNetV2(*sizes, num_classes=CLASSES), 64)


@entry("convolutional", "timm")
def mobilenet_v2() -> Subject:
    torchvision_apart()
    import timm

    model = timm.create_model(
        "mobilenetv2_050",
        drop_rate=0.2,
        drop_path_rate=0.1,
        num_classes=CLASSES,
    )
    return classified(model, 64)


@entry("convolutional", "transformers")
def convnext() -> Subject:
    sizes = {**OF_STAGES, "hidden_sizes": [16, 32], "depths": [2, 2], "num_stages": 2}
    sizes["drop_path_rate"] = 0.1
    model = configured("ConvNextForImageClassification", "ConvNextConfig", **sizes, patch_size=4)
    subject = classified(model)
    return Subject(
        model, keywords={"pixel_values": subject.inputs[0], "labels": subject.targets[0]}
    )


@entry("convolutional")
def vgg_in_place() -> Subject:
    layers: list[nn.Module] = []
    for i, o in ((3, 8), (8, 8), (8, 16), (16, 16)):
        layers += [nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(2)] if i == o else []
    head = [nn.Flatten(), nn.Linear(16 * 64, 32), nn.ReLU(True), nn.Dropout(0.5), nn.Linear(32, 5)]
    return classified(nn.Sequential(*layers, *head))


@entry("convolutional")
def batch_norm_transposed() -> Subject:
    """BatchNorm1d over the features of a sequence, as PointNet and many others have it."""

    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(12, 24), nn.Linear(24, 24)
            self.norm, self.again = nn.BatchNorm1d(24), nn.BatchNorm1d(24)
            self.head = nn.Linear(24 * 16, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(self.first(x).transpose(1, 2)).transpose(1, 2).relu()
            x = self.again(self.second(x).transpose(1, 2)).relu()
            found: Tensor = self.head(nn.functional.dropout(x, 0.2).flatten(1))
            return found

    x, y = torch.randn(8, 16, 12), torch.randint(0, 5, (8,))
    return Subject(Features(), (x,), (y,), nn.functional.cross_entropy)


# -- segmentation ---------------------------------------------------------------------------------


@entry("segmentation", "transformers")
def segformer() -> Subject:
    sizes = {
        "num_hidden_layers": None,
        "hidden_size": None,
        "num_encoder_blocks": 2,
        "depths": [2, 2],
        "sr_ratios": [4, 2],
        "hidden_sizes": [16, 32],
        "patch_sizes": [7, 3],
        "strides": [4, 2],
        "num_attention_heads": [2, 4],
        "mlp_ratios": [2, 2],
        "decoder_hidden_size": 16,
    }
    model = configured("SegformerForSemanticSegmentation", "SegformerConfig", **sizes)
    x, y = torch.randn(BATCH, 3, IMAGE, IMAGE), torch.randint(0, CLASSES, (BATCH, IMAGE, IMAGE))
    return Subject(model, keywords={"pixel_values": x, "labels": y})


@entry("segmentation", "torchvision")
def deeplab() -> Subject:
    torchvision = torchvision_apart()
    segmentation = torchvision.models.segmentation
    backbone = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1)
    )
    features = torchvision.models.feature_extraction.create_feature_extractor(
        backbone, {"3": "out"}
    )
    model = segmentation.DeepLabV3(features, segmentation.deeplabv3.DeepLabHead(32, CLASSES))

    def loss(found: dict[str, Tensor], target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(found["out"], target)

    x, y = torch.randn(2, 3, IMAGE, IMAGE), torch.randint(0, CLASSES, (2, IMAGE, IMAGE))
    return Subject(model, (x,), (y,), loss)


class _UNet(nn.Module):
    """Down and up with bridges (Ronneberger et al. 2015)."""

    def __init__(self, given: int = 3, made: int = CLASSES, width: int = 8) -> None:
        super().__init__()

        def pair(i: int, o: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(i, o, 3, padding=1),
                nn.GroupNorm(4, o),
                nn.SiLU(inplace=True),
                nn.Conv2d(o, o, 3, padding=1),
                nn.BatchNorm2d(o),
                nn.ReLU(inplace=True),
                nn.Dropout2d(0.1),
            )

        self.down = nn.ModuleList([pair(given, width), pair(width, 2 * width)])
        self.middle = pair(2 * width, 4 * width)
        self.rise = nn.ModuleList(
            [
                nn.ConvTranspose2d(4 * width, 2 * width, 2, 2),
                nn.ConvTranspose2d(2 * width, width, 2, 2),
            ]
        )
        self.up = nn.ModuleList([pair(4 * width, 2 * width), pair(2 * width, width)])
        self.head = nn.Conv2d(width, made, 1)

    def forward(self, x: Tensor) -> Tensor:
        bridges = []
        for block in self.down:
            x = block(x)
            bridges.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.middle(x)
        for rise, block in zip(self.rise, self.up, strict=True):
            x = block(torch.cat([rise(x), bridges.pop()], 1))
        found: Tensor = self.head(x)
        return found


@entry("segmentation")
def unet() -> Subject:
    x, y = torch.randn(BATCH, 3, IMAGE, IMAGE), torch.randint(0, CLASSES, (BATCH, IMAGE, IMAGE))

    def dice(logits: Tensor, target: Tensor) -> Tensor:
        near = nn.functional.one_hot(target, CLASSES).movedim(-1, 1).float()
        share = logits.softmax(1)
        common = (share * near).sum((0, 2, 3))
        return 1 - (2 * common / (share.sum((0, 2, 3)) + near.sum((0, 2, 3)) + 1)).mean()

    return Subject(_UNet(), (x,), (y,), dice)


@entry("segmentation", "transformers")
def upernet() -> Subject:
    import transformers

    backbone = transformers.SwinConfig(
        image_size=IMAGE,
        patch_size=4,
        embed_dim=16,
        depths=[1, 1, 1, 1],
        num_heads=[2, 2, 2, 2],
        window_size=2,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    config = transformers.UperNetConfig(
        backbone_config=backbone,
        hidden_size=16,
        pool_scales=[1, 2],
        num_labels=CLASSES,
        use_auxiliary_head=False,
        auxiliary_in_channels=64,
    )
    model = transformers.UperNetForSemanticSegmentation(config)
    x, y = torch.randn(BATCH, 3, IMAGE, IMAGE), torch.randint(0, CLASSES, (BATCH, IMAGE, IMAGE))
    return Subject(model, keywords={"pixel_values": x, "labels": y})


# -- detection ------------------------------------------------------------------------------------


def _boxes(num: int) -> list[dict[str, Tensor]]:
    boxes = torch.rand(BATCH, num, 4) * 0.4 + 0.3
    return [{"class_labels": torch.randint(0, CLASSES, (num,)), "boxes": b} for b in boxes]


@entry("detection", "transformers")
def yolos() -> Subject:
    model = configured(
        "YolosForObjectDetection",
        "YolosConfig",
        image_size=[IMAGE, IMAGE],
        num_detection_tokens=8,
        hidden_dropout_prob=0.1,
    )
    x = torch.randn(BATCH, 3, IMAGE, IMAGE)
    return Subject(model, keywords={"pixel_values": x, "labels": _boxes(3)})


@entry("detection", "transformers")
def detr() -> Subject:
    import transformers

    backbone = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        out_features=["stage2"],
    )
    config = transformers.DetrConfig(
        backbone_config=backbone,
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        num_queries=6,
        num_labels=CLASSES,
        backbone=None,
    )
    model = transformers.DetrForObjectDetection(config)
    x = torch.randn(BATCH, 3, IMAGE, IMAGE)
    return Subject(model, keywords={"pixel_values": x, "labels": _boxes(2)})


@entry("detection", "torchvision")
def retinanet() -> Subject:
    torchvision = torchvision_apart()
    detection = torchvision.models.detection
    backbone = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()
    )
    backbone.out_channels = 16
    anchors = detection.anchor_utils.AnchorGenerator(((8, 16),), ((0.5, 1.0),))
    model = detection.RetinaNet(
        backbone, CLASSES, min_size=IMAGE, max_size=IMAGE, anchor_generator=anchors
    )
    return Subject(model, (list(torch.rand(2, 3, IMAGE, IMAGE)), _truth()), loss=_total)


def _truth() -> list[dict[str, Tensor]]:
    corner = torch.tensor([[4.0, 4.0, 20.0, 20.0], [10.0, 8.0, 28.0, 30.0]])
    return [{"boxes": corner.clone(), "labels": torch.tensor([1, 2])} for _ in range(2)]


def _total(found: dict[str, Tensor]) -> Tensor:
    return torch.stack([*found.values()]).sum()


# -- diffusion ------------------------------------------------------------------------------------


@entry("diffusion", "diffusers")
def unet_2d() -> Subject:
    import diffusers

    model = diffusers.UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        block_out_channels=(8, 16),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        layers_per_block=1,
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        attention_head_dim=8,
        dropout=0.1,
    )
    return _denoising(model)


@entry("diffusion", "diffusers")
def unet_2d_condition() -> Subject:
    import diffusers

    model = diffusers.UNet2DConditionModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=16,
        norm_num_groups=4,
        attention_head_dim=4,
        dropout=0.1,
    )
    return _denoising(model, torch.randn(2, 7, 16))


@entry("diffusion", "diffusers")
def dit() -> Subject:
    import diffusers

    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=3,
        num_layers=2,
        sample_size=16,
        num_embeds_ada_norm=100,
        dropout=0.1,
    )
    noise = torch.randn(2, 3, 16, 16)
    words = {
        "hidden_states": torch.randn(2, 3, 16, 16),
        "timestep": torch.randint(0, 100, (2,)),
        "class_labels": torch.randint(0, 100, (2,)),
    }
    return Subject(
        model, loss=lambda f: nn.functional.mse_loss(f.sample[:, :3], noise), keywords=words
    )


def _denoising(model: nn.Module, *more: Tensor) -> Subject:
    def loss(found: Any, target: Tensor) -> Tensor:
        sample = found[0] if isinstance(found, tuple) else found.sample
        return nn.functional.mse_loss(sample[:, :3], target)

    x, noise = torch.randn(2, 3, 16, 16), torch.randn(2, 3, 16, 16)
    return Subject(model, (x, torch.randint(0, 100, (2,)), *more), (noise,), loss)


class _Denoiser(nn.Module):
    """Noise of a random step is added, and predicted (Ho et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.embed = _UNet(3 + 4, 3), nn.Embedding(20, 4)
        kept = torch.linspace(0.99, 0.2, 20).cumprod(0)
        self.register_buffer("kept", kept)

    def forward(self, x: Tensor) -> Tensor:
        step = torch.randint(0, 20, (len(x),))
        noise, kept = torch.randn_like(x), self.kept[step][:, None, None, None]
        noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise
        planes = self.embed(step)[:, :, None, None].expand(-1, -1, *x.shape[2:])
        return nn.functional.mse_loss(self.inner(torch.cat([noisy, planes], 1)), noise)


@entry("diffusion")
def ddpm_step() -> Subject:
    return Subject(_Denoiser(), (torch.randn(BATCH, 3, IMAGE, IMAGE),))
