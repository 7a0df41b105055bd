"""Reading ``schedsim.pipeline-plan/1``: what a plan of a pipeline chose, to be replayed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InvalidWorkloadError
from ..files.plan_files import read_source
from ..files.reader import Reader, parse_json
from ..plans.source import WorkloadSource
from .stage_plans import StagePlan

PIPELINE_PLAN_SCHEMA = "schedsim.pipeline-plan/1"


@dataclass(frozen=True, slots=True)
class SavedPipelinePlan:
    """What a plan file says: the choices, and the numbers that a replay must give.

    Attributes
    ----------
    most_owed
        Of the order ``zero-bubble``; ``None`` for its own limit.
    stage_plans
        For each stage the plans that its micro-batches take in turn.
    peak_bytes, makespan_s
        As simulated when the plan was made.
    source
        Where the workload comes from; ``None`` where the file does not say.
    given
        The link, the collectives and how stages run, as on the command line; empty as above.
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
        The file is no plan of a pipeline, or has no schedule; the message names the field.
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
    at = ""
    try:
        at = "stage_plans"
        plans = tuple(
            tuple(StagePlan(tuple(_text(one).split())) for one in several)
            for several in document["stage_plans"]
        )
        at = "cuts"
        cuts = tuple(_whole(cut) for cut in document["cuts"])
        numbers = []
        for at in ("num_devices", "num_micro_batches"):
            numbers.append(_whole(document[at]))
        at = "step"
        peak, makespan = _whole(document["step"]["peak_bytes"]), document["step"]["makespan_s"]
        at = "options"
        owed = document["options"].get("most_owed")
        at = "source"
        reader = Reader(document, "")
        source = read_source(reader)
        at = "given"
        given = dict(document.get("given", {}))
        at = "budget_bytes"
        budget = document["budget_bytes"]
        return SavedPipelinePlan(
            order_name=_text(document["order"]),
            num_devices=numbers[0],
            num_micro_batches=numbers[1],
            cuts=cuts,
            most_owed=None if owed is None else _whole(owed),
            stage_plans=plans,
            budget_bytes=None if budget is None else _whole(budget),
            peak_bytes=peak,
            makespan_s=float(makespan),
            source=source,
            given=given,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InvalidWorkloadError) or hasattr(error, "hint"):
            raise
        raise InvalidWorkloadError(
            f"{path}: missing, or not what it should be", path=at, hint="was the file edited?"
        ) from None


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
