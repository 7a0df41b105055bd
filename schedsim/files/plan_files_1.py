"""Reading ``schedsim.plan/1``, in which untyped options held what a plan runs on."""

from __future__ import annotations

from typing import Any

from ..plans.least_budget import LeastBudget
from ..plans.levels import MemoryLevels
from ..plans.plan import Plan
from ..plans.scope import Scope
from ..plans.search import SearchRecord
from ..plans.setting import AllocatorChoice, CopyTarget, Setting, StepChanges
from .plan_files import check_whole, read_common
from .reader import Reader
from .setting_files import read_level, read_link
from .workload_parts import read_chosen

PLAN_SCHEMA_1 = "schedsim.plan/1"

_FIGURES = (
    "least_memory_bytes",
    "least_memory_op",
    "synchronous_s",
    "line_s",
    "start_s",
    "blocks",
    "kinds",
)


def read_plan_1(reader: Reader) -> Plan:
    """The plan of a ``schedsim.plan/1`` file, converted to the current form."""
    fields = read_common(reader)
    options = reader.take_settings("options")
    setting = Setting(
        variants=read_chosen(reader),
        copies=_copies(options),
        allocator=_allocator(options),
        step=_step(options),
    )
    search = _search(options)
    reader.finish()
    fields["least"] = _least(options, fields["least"], fields["budget_bytes"])
    plan = Plan(**fields, options=options, setting=setting, search=search)
    check_whole(plan)
    return plan


def _least(options: dict[str, Any], found: LeastBudget, budget_bytes: int) -> LeastBudget:
    """The least budget; the budget is a floor if `options` say that infeasibility was proven."""
    proof, _, scope = str(options.pop("infeasible", "")).partition(" over ")
    if proof != "proven" or (found.found_bytes or budget_bytes + 1) <= budget_bytes:
        return found
    return LeastBudget(found.found_bytes, found.op, budget_bytes + 1, Scope.parse(scope))


def _copies(options: dict[str, Any]) -> CopyTarget | None:
    """Takes the link, or the memory levels, out of `options`."""
    host_bytes, link = options.pop("host_bytes", None), options.pop("link", None)
    levels = options.pop("levels", None)
    if link is not None:
        both = dict(link) if isinstance(link, dict) else {"d2h": link}
        return read_link(Reader({**both, "host_bytes": host_bytes}, "options.link"))
    if levels is None:
        return None
    reader = Reader({"levels": levels}, "options")
    return MemoryLevels(tuple(read_level(item) for item in reader.take_objects("levels")))


def _allocator(options: dict[str, Any]) -> AllocatorChoice | None:
    names = ("inner_budget_bytes", "reserved_bytes", "num_emptied")
    found = {name: options.pop(name) for name in names if name in options}
    name, given = options.pop("allocator", None), options.pop("allocator_options", {})
    return None if name is None else AllocatorChoice(str(name), given, **found)


def _step(options: dict[str, Any]) -> StepChanges | None:
    names = ("structure", "added_bytes", "chunk", "accumulate", "generator_states_bytes")
    found = {name: options.pop(name) for name in names if name in options}
    level = options.pop("level", None)
    return None if level is None else StepChanges(str(level), **found)


def _search(options: dict[str, Any]) -> SearchRecord:
    return SearchRecord(
        chosen=str(options.pop("chosen", "")),
        num_moves=options.pop("moves", None),
        ended_by="interrupt" if options.pop("interrupted", False) else "itself",
        bound_by=str(options.pop("bound", "")),
        bound_op=str(options.pop("bound_at", "")),
        figures={name: options.pop(name) for name in _FIGURES if name in options},
    )
