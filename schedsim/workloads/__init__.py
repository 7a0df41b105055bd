"""Workloads by formula: models, devices, model state and synthetic chains."""

from __future__ import annotations

from .build import BuiltWorkload, build_workload, variants
from .devices import DEVICES, Device, Roofline, get_device
from .model_state import STATE_RULES, model_state_bytes
from .options import WorkloadOptions
from .presets import PRESETS
from .resnet import ResNetConfig, resnet_model
from .synthetic import SYNTHETIC
from .transformer import TransformerConfig, layer_saved_bytes, transformer_model

__all__ = [
    "DEVICES",
    "PRESETS",
    "STATE_RULES",
    "SYNTHETIC",
    "BuiltWorkload",
    "Device",
    "ResNetConfig",
    "Roofline",
    "TransformerConfig",
    "WorkloadOptions",
    "build_workload",
    "get_device",
    "layer_saved_bytes",
    "model_state_bytes",
    "resnet_model",
    "transformer_model",
    "variants",
]
