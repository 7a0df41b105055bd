"""Reading a source: the workload, and the plan if there is one among the files."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from ...dataflow.chain import Chain
from ...dataflow.graph import Graph
from ...errors import InfeasibleBudgetError, MissingDependencyError, SchedsimError
from ...files.document import load
from ...plans.budgets import read_budget
from ...plans.claims import check_claims
from ...plans.plan import Plan
from ...plans.setting import StepChanges
from ...plans.source import WorkloadSource
from ...simulation.schedule import Schedule
from ...units import format_bytes
from ...workloads import build_workload
from ...workloads.given import is_target
from ...workloads.named import is_named, named_workload
from ..dry import on_device
from ..options.formula import flags
from ..options.typed_sizes import size_text
from .remembered import capture_of, check_plan, has_link, remembered
from .workload_source import Source

_GIVE = "give a chain or a graph"


@dataclass(frozen=True)
class Loaded:
    """The content of a `Source`.

    Attributes
    ----------
    given
        The workload without the variants of the plan.
    origin
        For a real model, the step changes that a plan records for `schedsim.apply`.
    """

    workload: Chain | Graph
    assumptions: tuple[str, ...]
    plan: Plan | None
    given: Chain | Graph
    origin: StepChanges | None = None

    def budget_bytes(self, budget: int | str) -> int:
        """Bytes of ``--mem``; a share is a share of the store-all peak of the given workload."""
        return read_budget(budget, self.given)

    def remembered_by(self, plan: Plan, source: WorkloadSource) -> Plan:
        """`plan` with where this workload comes from; of a real model, with the workload itself."""
        captured = self.given if source.kind == "model" else None
        return replace(plan, workload=replace(plan.workload, source=source, captured=captured))

    def label(self, op_name: str) -> str:
        """An op's name, with the name of its stage if it has one."""
        return self.workload.stage_label(op_name)


def schedule_of(plan: Plan) -> Schedule:
    """The plan's schedule; `InfeasibleBudgetError` if it has none."""
    if plan.schedule is None:
        least = plan.min_feasible_bytes
        raise InfeasibleBudgetError(
            f"the plan has no schedule: nothing fits {format_bytes(plan.budget_bytes)}",
            plan=plan,
            hint=plan.least.hint(f"--mem {size_text(least)}", plan.binding_op or "")
            if least is not None
            else "plan again with a larger budget",
        )
    return plan.schedule


def given_schedule(loaded: Loaded, schedule_file: str) -> Schedule:
    """The schedule given by the op names in a file, or on stdin."""
    if loaded.plan is not None:
        raise SchedsimError("both a plan and --schedule are given", hint="give one of the two")
    data = sys.stdin.buffer.read() if schedule_file == "-" else Path(schedule_file).read_bytes()
    try:
        names = data.decode().split()
    except UnicodeDecodeError:
        raise SchedsimError(
            f"--schedule {schedule_file}: not a text file", hint="op names with spaces between them"
        ) from None
    if not names:
        raise SchedsimError(f"--schedule {schedule_file}: no op names", hint="F0 F1 loss ...")
    return Schedule.from_names(names)


def need_torch() -> None:
    """Raise `MissingDependencyError` if torch is not installed."""
    if find_spec("torch") is None:
        raise MissingDependencyError(
            "models need torch, which is not installed", hint="pip install 'schedsim[torch]'"
        )


def read(
    source: Source, *, plan: bool = False, movable: bool = False, check: bool = True
) -> Loaded:
    """The workload, its assumptions, and the plan among the files if one is allowed.

    With `movable`, or if the plan among the files has a link, a model is captured so that its
    tensors can be offloaded. With `check`, a plan is refused whose peak or time is not that of
    its schedule.
    """
    workload: Chain | Graph | None = None
    found: Plan | None = None
    lines: tuple[str, ...] = ()
    origin: StepChanges | None = None
    if source.level and not source.is_model:
        raise SchedsimError(
            f"--level {source.level} is for real models", hint="a formula takes --granularity"
        )
    models = [name for name in source.files if is_target(name)]
    if len(models) > 1:
        raise SchedsimError(f"{models[1]} is a second workload", hint="give one at a time")
    # Plans are read first: a plan names its workload, and says how its model was captured.
    items = {name: _load(name) for name in source.files if not is_target(name)}
    alone = remembered(source, items)
    if alone is not None and (carried := _carried(source, alone, items)) is not None:
        if not plan:
            raise SchedsimError(f"{source.files[0]} is a plan, not a workload", hint=_GIVE)
        return _with_plan(*carried, check=check)
    if alone is not None:
        again = replace(alone, allow=source.allow)
        return read(again, plan=plan, movable=movable, check=check)
    if source.again and not source.is_model:
        raise SchedsimError(
            "--remeasure is for real models, whose times are measured",
            hint="leave --remeasure out: the times of this workload are given",
        )
    movable |= any(isinstance(item, Plan) and has_link(item) for item in items.values())
    for name in source.files:
        if is_target(name) and workload is None:
            plans = (item for item in items.values() if isinstance(item, Plan))
            known = next((item.workload.source for item in plans), None)
            level, where = capture_of(known, source.level, source.options["device"])
            on_device(where)
            need_torch()
            from ...validation.targets import read_target

            built = read_target(
                name, level=level, device=where, movable=movable, remeasure=source.again
            )
            workload, lines, origin = built.workload, built.lines, built.origin
            continue
        item = items[name]
        if isinstance(item, Plan):
            if not plan:
                raise SchedsimError(f"{name} is a plan, not a workload", hint=_GIVE)
            if found is not None:
                raise SchedsimError(f"{name} is a second plan", hint="give one at a time")
            found = item
        elif workload is not None:
            raise SchedsimError(f"{name} is a second workload", hint="give one at a time")
        else:
            workload, lines = item, (_describe(item, name),)
    options = source.formula()
    if options is not None:
        if workload is not None:
            flag = flags()[next(iter(source.given))]
            raise SchedsimError(
                f"both a workload file and {flag} are given", hint="give one of the two"
            )
        formula = build_workload(options)
        workload, lines = formula.workload, formula.assumptions
    if workload is None:
        raise SchedsimError(
            "no workload: give a file, --layers or --preset",
            hint="try --layers 96, --preset gpt2, a chain.json, or model:resnet50",
        )
    if found is not None:
        measured = source.is_model
        return _with_plan(found, workload, lines, origin, check=check, measured=measured)
    return Loaded(workload, lines, found, workload, origin)


def _with_plan(
    plan: Plan,
    workload: Chain | Graph,
    lines: tuple[str, ...],
    origin: StepChanges | None = None,
    *,
    check: bool,
    measured: bool = False,
) -> Loaded:
    """A plan with its workload, as `read` returns them; its numbers are compared with a replay."""
    check_plan(plan, workload, measured=measured)
    if check and plan.schedule is not None:
        check_claims(plan, plan.simulate(workload), times=not measured)
    return Loaded(plan.setting.resolve(workload), lines, plan, workload, origin)


def _carried(
    source: Source, alone: Source, items: Mapping[str, Chain | Graph | Plan]
) -> tuple[Plan, Chain | Graph, tuple[str, ...]] | None:
    """A model's plan among `items` with the workload that it carries; ``None`` without one.

    What is asked to be captured otherwise, or measured again, is not the carried one.
    """
    plan = next(item for item in items.values() if isinstance(item, Plan))
    known, workload = plan.workload.source, plan.workload.captured
    if known is None or workload is None or source.again:
        return None
    if alone.level != known.options.get("level"):
        return None
    if alone.options["device"] != known.options.get("device"):
        return None
    return plan, workload, (f"{known.target} as captured for the plan, {_size(workload)}",)


def _load(name: str) -> Chain | Graph | Plan:
    if is_target(name):
        raise SchedsimError(f"{name} is a second workload", hint="give one at a time")
    return named_workload(name) if is_named(name) else load(name)


def _describe(item: Chain | Graph, name: str) -> str:
    return f"{item.kind} {item.name} from {name}, {_size(item)}"


def _size(item: Chain | Graph) -> str:
    return f"{item.num_stages} stages" if isinstance(item, Chain) else f"{item.num_ops} ops"
