"""Whole clusters: the memory of every rank and the time of a step, for published models."""

from __future__ import annotations

from ..workloads.architecture import Architecture, AttentionSizes, ExpertSizes
from ..workloads.architectures_by_name import get_architecture
from ..workloads.known_architectures import ARCHITECTURES
from .degrees import Degrees
from .fabric import Fabric, get_fabric
from .facade import cluster
from .joint_choice import ClusterChoice, choose
from .libraries import Libraries
from .prediction import ClusterPrediction, predict
from .rank_memory import RankMemory, rank_memory
from .rank_time import StepTime, step_time
from .recompute_choice import least_recomputation
from .training import RECOMPUTE, STATES, Training

__all__ = [
    "ARCHITECTURES",
    "RECOMPUTE",
    "STATES",
    "Architecture",
    "AttentionSizes",
    "ClusterChoice",
    "ClusterPrediction",
    "Degrees",
    "ExpertSizes",
    "Fabric",
    "Libraries",
    "RankMemory",
    "StepTime",
    "Training",
    "choose",
    "cluster",
    "get_architecture",
    "get_fabric",
    "least_recomputation",
    "predict",
    "rank_memory",
    "step_time",
]
