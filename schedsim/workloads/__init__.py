"""Workloads by formula: models, devices, model state and synthetic chains."""

from __future__ import annotations

from .architecture import Architecture, AttentionSizes, ExpertSizes
from .architectures_by_name import get_architecture
from .build import BuiltWorkload, build_workload, variants
from .devices import DEVICES, Device, Roofline, get_device
from .diffusion import DiTConfig, SDXLConfig
from .known_architectures import ARCHITECTURES
from .language_model import LanguageModelConfig
from .model_state import STATE_RULES, model_state_bytes
from .options import WorkloadOptions
from .presets import PRESETS
from .resnet import ResNetConfig, resnet_model
from .synthetic import SYNTHETIC
from .transformer import TransformerConfig, layer_saved_bytes, transformer_model
from .whisper import WhisperConfig

__all__ = [
    "ARCHITECTURES",
    "DEVICES",
    "PRESETS",
    "STATE_RULES",
    "SYNTHETIC",
    "Architecture",
    "AttentionSizes",
    "BuiltWorkload",
    "Device",
    "DiTConfig",
    "ExpertSizes",
    "LanguageModelConfig",
    "ResNetConfig",
    "Roofline",
    "SDXLConfig",
    "TransformerConfig",
    "WhisperConfig",
    "WorkloadOptions",
    "build_workload",
    "get_architecture",
    "get_device",
    "layer_saved_bytes",
    "model_state_bytes",
    "resnet_model",
    "transformer_model",
    "variants",
]
