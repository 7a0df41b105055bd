"""Reading ``schedsim.pipeline-plan/1``: the choices of a pipeline plan, for a replay."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..checks.value_checks import shown
from ..errors import InvalidWorkloadError
from ..files.plan_files import read_source
from ..files.reader import Reader, parse_json
from ..plans.source import WorkloadSource
from .stage_plans import StagePlan

PIPELINE_PLAN_SCHEMA = "schedsim.pipeline-plan/1"


@dataclass(frozen=True, slots=True)
class SavedPipelinePlan:
    """The content of a plan file: the choices, and the numbers that a replay must give.

    Attributes
    ----------
    most_owed
        Limit of the order ``zero-bubble``; ``None`` for its default.
    stage_plans
        For each stage the plans that its micro-batches take in turn.
    peak_bytes, makespan_s
        Peak and time as simulated when the plan was made.
    source
        Where the workload comes from; ``None`` where the file does not say.
    given
        The link, the collectives and how stages run, as on the command line; empty if not in the
        file.
    """

    order_name: str
    num_devices: int
    num_micro_batches: int
    cuts: tuple[int, ...]
    most_owed: int | None
    stage_plans: tuple[tuple[StagePlan, ...], ...]
    budget_bytes: int | None
    peak_bytes: int
    makespan_s: float
    source: WorkloadSource | None = None
    given: Mapping[str, Any] = field(default_factory=dict)


def read_pipeline_plan(path: str | os.PathLike[str]) -> SavedPipelinePlan:
    """The plan in the JSON file at `path`.

    Raises
    ------
    InvalidWorkloadError
        The file is not a pipeline plan, or has no schedule; the message names the field.
    InvalidScheduleError
        A stage's plan is no backward of its layers.
    OSError
        The file cannot be read.
    """
    document = parse_json(Path(path).read_bytes())
    if not isinstance(document, dict) or document.get("schema") != PIPELINE_PLAN_SCHEMA:
        raise InvalidWorkloadError(
            f"{path} is no plan of a pipeline", hint="schedsim pipeline ... -o plan.json writes one"
        )
    if document.get("step") is None:
        raise InvalidWorkloadError(
            f"{path}: the plan has no schedule: nothing fitted", hint="plan with a larger budget"
        )
    try:
        return _read(Reader(document, ""))
    except InvalidWorkloadError as error:
        hint = error.hint or "was the file edited?"
        located = InvalidWorkloadError(f"{path}: {error.message}", hint=hint)
        located.path = error.path
        raise located from None


def _read(reader: Reader) -> SavedPipelinePlan:
    """The plan of a file with a schedule; fields that a replay does not need are ignored."""
    step, options = reader.take_object("step"), reader.take_object("options")
    return SavedPipelinePlan(
        order_name=reader.take("order", str),
        num_devices=reader.take_count("num_devices", least=1),
        num_micro_batches=reader.take_count("num_micro_batches", least=1),
        cuts=_cuts(reader),
        most_owed=options.take_optional_count("most_owed"),
        stage_plans=_stage_plans(reader),
        budget_bytes=reader.take_optional_bytes("budget_bytes"),
        peak_bytes=step.take_bytes("peak_bytes"),
        makespan_s=step.take_total_seconds("makespan_s"),
        source=read_source(reader),
        given=reader.take_settings("given") if "given" in reader.names() else {},
    )


def _cuts(reader: Reader) -> tuple[int, ...]:
    cuts = reader.take("cuts", list)
    for i, cut in enumerate(cuts):
        if isinstance(cut, bool) or not isinstance(cut, int) or cut < 0:
            raise InvalidWorkloadError(f"{shown(cut)} is no layer's number", path=f"cuts[{i}]")
    if len(cuts) < 2:
        raise InvalidWorkloadError("fewer than the two ends of a pipeline", path="cuts")
    return tuple(cuts)


def _stage_plans(reader: Reader) -> tuple[tuple[StagePlan, ...], ...]:
    """A plan for each micro-batch of each stage: texts of runs with blanks between them."""
    found = []
    for i, several in enumerate(reader.take("stage_plans", list)):
        if not isinstance(several, list):
            raise InvalidWorkloadError(f"{shown(several)} is not a list", path=f"stage_plans[{i}]")
        for k, text in enumerate(several):
            if not isinstance(text, str):
                raise InvalidWorkloadError(
                    f"{shown(text)} is not text", path=f"stage_plans[{i}][{k}]"
                )
        found.append(tuple(StagePlan(tuple(text.split())) for text in several))
    return tuple(found)
