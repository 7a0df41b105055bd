"""The workload that a plan file remembers, and the check that a plan is for a workload."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InvalidScheduleError, SchedsimError
from ...files.workload_files import workload_hash
from ...plans.claims import check_belongs
from ...plans.plan import Plan
from ...plans.source import WorkloadSource
from ...workloads.named import is_named
from ..options.formula import flags, no_options
from .workload_source import Source

if TYPE_CHECKING:
    from ...dataflow.chain import Chain
    from ...dataflow.graph import Graph


def remembered(source: Source, items: Mapping[str, Chain | Graph | Plan]) -> Source | None:
    """The source that a plan among `items` remembers, plan included; ``None`` if one is given.

    Raises
    ------
    SchedsimError
        The given formula options differ from those of the plan, or the workload file is missing.
    """
    plans = [(name, item) for name, item in items.items() if isinstance(item, Plan)]
    others = [name for name in source.files if name not in dict(plans)]
    if len(plans) != 1 or others:
        return None
    name, plan = plans[0]
    known = plan.workload.source
    if source.given and not source.is_model:
        if known is not None and known.kind == "formula":
            _refuse_difference(source, known.options, name)
        return None
    if known is None:
        raise SchedsimError(
            f"{name} does not say where its workload {plan.workload.name!r} comes from",
            hint="give the workload beside it: its file, or the options of its formula",
        )
    return source_of(known, source, name)


def source_of(known: WorkloadSource, source: Source, name: str) -> Source:
    """`source` with the workload that the plan file `name` remembers in front of its files."""
    if known.kind == "formula":
        options = no_options(_checked_options(known.options, name))
        return Source(source.files, options, again=source.again)
    if known.kind == "model":
        level, device = capture_of(known, source.level, source.options["device"])
        where = {**no_options({}), "device": device}
        return Source((known.target, *source.files), where, level, again=source.again)
    file = _found_file(known.path, beside=name)
    return Source((file, *source.files), source.options, source.level, again=source.again)


def capture_of(
    known: WorkloadSource | None, level: str | None, device: str | None
) -> tuple[str | None, str | None]:
    """The level and device of a model, as for the plan that remembers `known` where not given."""
    if known is None or known.kind != "model":
        return level, device
    return level or known.options.get("level"), device or known.options.get("device")


def source_of_pipeline(known: WorkloadSource | None, source: Source, name: str) -> Source:
    """The workload of the pipeline plan file `name`: remembered by it, or given beside it.

    Raises
    ------
    SchedsimError
        There is neither, or the given formula differs.
    """
    if source.files or source.given:
        if known is not None and known.kind == "formula" and not source.files:
            _refuse_difference(source, known.options, name)
        return source
    if known is None:
        raise SchedsimError(
            f"{name} does not say where its workload comes from",
            hint="give the workload beside it: its file, or the options of its formula",
        )
    return source_of(known, source, name)


def _refuse_difference(source: Source, known: Mapping[str, Any], name: str) -> None:
    """Refuse formula options that differ from those of the plan file `name`."""
    known_flags, given = flags(), source.given
    differing = [field for field in {**known, **given} if known.get(field) != given.get(field)]
    if differing:
        said = "; ".join(
            f"{known_flags.get(field, field)} is {given.get(field, 'not given')}, "
            f"in the plan {known.get(field, 'not given')}"
            for field in differing
        )
        raise SchedsimError(
            f"{name} was made for another workload: {said}",
            hint="leave these options out: the plan remembers its own",
        )


def _checked_options(known: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    unknown = sorted(set(known) - set(flags()))
    if unknown:
        raise SchedsimError(
            f"{name}: workload.source.options.{unknown[0]} is no option of a formula",
            hint="the file was edited, or made by another version",
        )
    return known


def _found_file(path: str, *, beside: str) -> str:
    """The workload file that the plan names, sought from here and from the plan's folder."""
    if is_named(path):
        return path
    for candidate in (Path(path), Path(beside).parent / path):
        if candidate.is_file():
            return str(candidate)
    raise SchedsimError(
        f"{beside} was made for the workload in {path}, which is not there",
        hint="give the workload file beside the plan",
    )


def has_link(plan: Plan) -> bool:
    """Whether `plan` was made with a link to host memory."""
    return plan.setting.link is not None


def check_plan(plan: Plan, workload: Chain | Graph, *, measured: bool = False) -> None:
    """Refuse a plan of another workload, even where its op names fit this one.

    For a `measured` workload only the sizes must agree, as times never do: the plan's schedule must
    have the plan's peak.
    """
    if plan.workload.content_hash == workload_hash(workload):
        return
    same = False
    if (
        measured
        and not plan.variants
        and plan.schedule is not None
        and plan.static_bytes == workload.static_bytes
    ):
        try:
            same = plan.simulate(workload).peak_bytes == plan.peak_bytes
        except InvalidScheduleError:
            same = False
    if not same:
        check_belongs(plan, workload)
