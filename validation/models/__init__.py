"""Models to validate on, of any size; every builder gives (model, inputs, loss)."""

from __future__ import annotations

from .named_models import MODELS, ModelInfo, build_model, read_options
from .workload import Workload, num_parameters

__all__ = ["MODELS", "ModelInfo", "Workload", "build_model", "num_parameters", "read_options"]
