"""Pipelines: stages on devices, micro-batches, messages, orders, and recomputation."""

from __future__ import annotations

from .orders import ORDERS, Action, Order, make_order, most_in_flight
from .pipeline import Collectives, Pipeline, WeightGradient, even_cuts, make_pipeline
from .run import DeviceUse, PipelineRun, run_pipeline
from .sequence import pipeline_schedule
from .stage_plans import RECOMPUTE, StagePlan, keep_all, layer_inputs, stage_input

__all__ = [
    "ORDERS",
    "RECOMPUTE",
    "Action",
    "Collectives",
    "DeviceUse",
    "Order",
    "Pipeline",
    "PipelineRun",
    "StagePlan",
    "WeightGradient",
    "even_cuts",
    "keep_all",
    "layer_inputs",
    "make_order",
    "make_pipeline",
    "most_in_flight",
    "pipeline_schedule",
    "run_pipeline",
    "stage_input",
]
