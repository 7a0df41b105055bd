"""One small configuration of every model: seconds on one core, activations of some megabytes."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("mlp", {"layers": 8, "hidden": 128, "batch": 256, "dropout": 0.1}),
    "gpt2": (
        "gpt2",
        {"layers": 4, "hidden": 64, "heads": 4, "vocab": 500, "seq": 64, "batch": 4},
    ),
    "llama": (
        "llama2-7b",
        {"layers": 4, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 172, "vocab": 500}
        | {"seq": 64, "batch": 4},
    ),
    "vit": (
        "vit-b16",
        {"layers": 4, "hidden": 64, "heads": 4, "patch": 8, "image": 64, "classes": 10}
        | {"batch": 4, "dropout": 0.1},
    ),
    "resnet": (
        "resnet50",
        {"depths": (1, 2, 2, 1), "width": 16, "image": 64, "classes": 10, "batch": 8},
    ),
    "unet": ("unet", {"levels": 3, "width": 8, "image": 64, "batch": 4, "dropout": 0.1}),
    "lstm": ("lstm", {"seq": 32, "hidden": 64, "features": 32, "batch": 64, "steps": 4}),
}
