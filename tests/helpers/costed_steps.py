"""A step of two equal products, and its calls by name, for tests of costs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from schedsim.validation.capture import capture
from torch import nn


def two_layers(dtype=torch.float32):
    """Batch 64, widths 32 and 32: equal products share one measurement."""
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)).to(dtype)
    inputs = torch.randn(64, 32, dtype=dtype), torch.zeros(64, dtype=torch.long)
    return capture(model, inputs, F.cross_entropy)


def call_named(captured, name):
    return next(call for call in captured.program.calls if call.name == name)
