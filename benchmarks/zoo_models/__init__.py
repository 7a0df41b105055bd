"""Tiny models of all kinds, most of them other people's, by family."""

from importlib.util import find_spec

from . import (
    audio,
    autograd_ways,
    decoders,
    densities,
    encoder_decoders,
    encoders,
    experts,
    images,
    recurrent_models,
    relations,
    state_space,
    torchvision_apart,
)
from .subject import ENTRIES, Entry, Subject

if find_spec("torchvision") is not None:
    torchvision_apart.torchvision()

__all__ = [
    "ENTRIES",
    "Entry",
    "Subject",
    "audio",
    "autograd_ways",
    "decoders",
    "densities",
    "encoder_decoders",
    "encoders",
    "experts",
    "images",
    "recurrent_models",
    "relations",
    "state_space",
    "torchvision_apart",
]
