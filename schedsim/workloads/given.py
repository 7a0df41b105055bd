"""Workloads as calls take them: an object, the path of a file, or the name of a plugin."""

from __future__ import annotations

import os
import sys
from typing import Any, cast

from ..dataflow.chain import Chain
from ..dataflow.graph import Graph
from ..errors import SchedsimError, UnsupportedError
from .named import is_named, named_workload

WorkloadLike = Chain | Graph | str | os.PathLike[str]
"""A workload, the path of a file that holds one, or ``"workload:NAME,OPTION=VALUE,..."``."""


def read_workload(given: WorkloadLike) -> Chain | Graph:
    """`given` itself if it is a workload, or the workload behind the path or name.

    Raises
    ------
    UnsupportedError
        `given` is a torch model, which `schedsim.rematerialize` plans and runs.
    SchedsimError
        `given` is not a workload, or the file holds a plan.
    OSError
        The file cannot be read.
    """
    if isinstance(given, Chain | Graph):
        return given
    if getattr(given, "kind", None) == "pipeline":
        return cast("Graph", given)  # the table of planners says which planners take pipelines
    if isinstance(given, str) and is_named(given):
        return named_workload(given)
    if isinstance(given, str | os.PathLike):
        return _from_file(os.fspath(given))
    if _is_torch_model(given):
        raise UnsupportedError(
            f"a {type(given).__name__} is a torch model, not a chain or a graph",
            hint="schedsim.rematerialize(model, inputs, loss, budget) plans it and trains by it",
        )
    raise SchedsimError(
        f"a {type(given).__name__} is no workload",
        hint="give a Chain, a Graph, or the path of a file with one",
    )


def _from_file(path: str) -> Chain | Graph:
    from ..files.document import load
    from ..plans.plan import Plan

    if is_target(path):
        raise UnsupportedError(
            f"{path} is a torch model",
            hint="schedsim.rematerialize plans it in Python, `schedsim plan` on the command line",
        )
    if not os.path.exists(path):
        from .presets import PRESETS

        if path in PRESETS:
            raise SchedsimError(
                f"{path} is a preset, and no file of this name is there",
                hint=f"schedsim.workloads.build_workload(WorkloadOptions(preset={path!r}))",
            )
    found = load(path)
    if isinstance(found, Plan):
        raise SchedsimError(f"{path} is a plan, not a workload", hint="give a chain or a graph")
    return found


def is_target(text: str) -> bool:
    """Whether `text` names a model rather than a file: ``my_model.py:build``, ``model:gpt2``."""
    head = text.partition(",")[0]
    return head.startswith(("model:", "hf:")) or ".py:" in head or head.endswith(".py")


def _is_torch_model(given: Any) -> bool:
    torch = sys.modules.get("torch")  # a caller with a model has imported torch
    return torch is not None and isinstance(given, torch.nn.Module)
