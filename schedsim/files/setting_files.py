"""The field ``setting`` of a plan file: how the workload that runs differs from the given one."""

from __future__ import annotations

from typing import Any

from ..dataflow.recomputation_rules import NO_RULES, RecomputationRules
from ..errors import InvalidWorkloadError
from ..plans.levels import MemoryLevel, MemoryLevels
from ..plans.links import Link
from ..plans.offloading import Offloading
from ..plans.setting import AllocatorChoice, CopyTarget, Setting, StepChanges
from .fields_to_dict import fields_to_dict
from .reader import Reader
from .workload_parts import chosen_to_list, read_chosen


def setting_to_dict(setting: Setting) -> dict[str, Any]:
    """The parts of `setting` that differ from the default; an empty object for a plain plan."""
    item: dict[str, Any] = {}
    if setting.variants:
        item["variants"] = chosen_to_list(setting.variants)
    if setting.link is not None:
        item["link"] = {
            "d2h": _link_to_dict(setting.link.d2h),
            "h2d": _link_to_dict(setting.link.h2d),
            "host_bytes": setting.link.host_bytes,
        }
    if setting.levels is not None:
        item["levels"] = [_level_to_dict(level) for level in setting.levels.levels]
    if setting.allocator is not None:
        item["allocator"] = fields_to_dict(setting.allocator, table="options")
    if setting.step is not None:
        item["step"] = fields_to_dict(setting.step, table="chunk")
    if setting.rules:
        item["rules"] = {
            "keep": list(setting.rules.keep),
            "recompute": list(setting.rules.recompute),
        }
    return item


def read_setting(item: Reader) -> Setting:
    """The setting that `setting_to_dict` wrote."""
    given = item.names()
    if "link" in given and "levels" in given:
        raise InvalidWorkloadError("both a link and memory levels", path="setting.levels")
    copies: CopyTarget | None = item.take_part("link", read_link)
    if "levels" in given:
        copies = MemoryLevels(tuple(read_level(level) for level in item.take_objects("levels")))
    return item.whole(
        Setting(
            variants=read_chosen(item),
            copies=copies,
            allocator=item.take_part("allocator", _read_allocator),
            step=item.take_part("step", _read_step),
            rules=item.take_part("rules", _read_rules) or NO_RULES,
        )
    )


def _read_rules(item: Reader) -> RecomputationRules:
    keep, recompute = item.take_names("keep", ()), item.take_names("recompute", ())
    return item.whole(item.make(RecomputationRules.of, keep, recompute))


def _link_to_dict(link: Link) -> dict[str, float]:
    return {"bytes_per_s": float(link.bytes_per_s), "latency_s": float(link.latency_s)}


def _read_direction(item: Reader) -> Link:
    rate = item.take_number("bytes_per_s")
    return item.whole(item.make(Link, rate, item.take_seconds("latency_s", 0.0)))


def read_link(item: Reader) -> Offloading:
    """A link of two directions, and the host memory behind it."""
    return item.whole(
        Offloading(
            _read_direction(item.take_object("d2h")),
            _read_direction(item.take_object("h2d")),
            item.take_optional_bytes("host_bytes", None),
        )
    )


def _level_to_dict(level: MemoryLevel) -> dict[str, Any]:
    return {
        "num_slots": level.num_slots,
        "write_s": float(level.write_s),
        "read_s": float(level.read_s),
    }


def read_level(item: Reader) -> MemoryLevel:
    """A memory level."""
    slots, write_s = item.take("num_slots", int), item.take_seconds("write_s")
    return item.whole(item.make(MemoryLevel, slots, write_s, item.take_seconds("read_s")))


def _read_allocator(item: Reader) -> AllocatorChoice:
    return item.whole(
        AllocatorChoice(
            name=item.take("name", str),
            options=item.take_settings("options"),
            inner_budget_bytes=item.take_optional_bytes("inner_budget_bytes", None),
            reserved_bytes=item.take_optional_bytes("reserved_bytes", None),
            num_emptied=item.take_count("num_emptied", 0),
        )
    )


def _read_step(item: Reader) -> StepChanges:
    return item.whole(
        StepChanges(
            level=item.take_choice("level", ("block", "op")),
            structure=item.take("structure", str, ""),
            added_bytes=item.take("added_bytes", int, 0),
            chunk=item.take_settings("chunk"),
            accumulate=item.take_count("accumulate", 1, least=1),
            generator_states_bytes=item.take_bytes("generator_states_bytes", 0),
            compiled=item.take("compiled", bool, False),
        )
    )
