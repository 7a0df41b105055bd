"""The request of ``schedsim plan``: all options, read and checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...allocators import EXACT
from ...api import get_planner
from ...dataflow.chain import Chain
from ...dataflow.graph import Graph
from ...dataflow.recomputation_rules import check_beside_recompute
from ...dataflow.variants import check_allowed, graph_options, stage_options
from ...errors import SchedsimError
from ..given.workload_source import Source
from ..options.allocator_options import read_options
from ..options.level_options import check_levels, read_levels
from ..options.link import FLAGS as LINK_FLAGS
from ..options.link import take_link
from ..options.rule_options import FLAGS as RULE_FLAGS
from ..options.rule_options import take_rules
from .step_options import read_accumulate, read_chunk

DEFAULT_PLANNER = get_planner().name
FLAGS = {
    "time_limit_s": "--time-limit",
    "effort": "--effort",
    "num_slots": "--slots",
    "gap": "--gap",
    "order": "--order",
    "search_seed": "--search-seed",
    "allow": "--allow",
}
"""Option of a planner -> the flag that sets it."""


@dataclass(frozen=True)
class PlanRequest:
    """The command line of ``schedsim plan``.

    Attributes
    ----------
    budget
        Bytes, or a share of the store-all peak as text.
    own
        Planner options that do not depend on the workload.
    rules
        ``keep`` and ``recompute``, where given.
    link
        ``link``, ``host_bytes`` and ``host_latency_s``, where given; empty without a link.
    level_texts
        ``--memory-level`` as text, because the size of a slot depends on the workload.
    allocator, allocator_options
        As `schedsim.plan` takes them; ``None`` for the workload's default.
    maximize
        The field to maximize: ``batch``, ``seq`` or ``layers``; ``None`` for a single plan.
    certificate
        The file for the plan with its proof; ``None`` for none.
    accumulate, chunk, price_all
        For a real model: micro-batches, chunks, and whether to price every way to need less memory.
    """

    source: Source
    budget: int | str
    planner: str
    own: Mapping[str, Any]
    rules: Mapping[str, Any]
    link: Mapping[str, Any]
    level_texts: tuple[str, ...]
    allocator: str | None
    allocator_options: Mapping[str, Any]
    maximize: str | None
    accumulate: int | str | None
    chunk: dict[str, int | str] | str | None
    price_all: bool
    as_json: bool
    output: str | None
    certificate: str | None = None

    @property
    def changes_step(self) -> bool:
        """Whether the step of a model may be changed, or changes are to be priced."""
        return self.accumulate is not None or self.chunk is not None or self.price_all

    @property
    def memory(self) -> dict[str, Any]:
        """The allocator, as `schedsim.plan` takes it."""
        return {"allocator": self.allocator, "allocator_options": self.allocator_options}

    def options(self, workload: Chain | Graph) -> dict[str, Any]:
        """The options of the planner on `workload`."""
        return {**self.own, **self.rules, **self.link, **read_levels(self.level_texts, workload)}

    def useless_kinds(self, workload: Chain | Graph) -> tuple[str, ...]:
        """The kinds in ``--allow`` that no variant of `workload` uses."""
        allow = self.own.get("allow", ())
        if isinstance(workload, Graph):
            found = [variant.kind for variant in graph_options(workload, allow)]
        else:
            options = [stage_options(stage, allow) for stage in workload.stages]
            found = [variant.kind for variants in options for variant in variants]
        usable = {kind for kinds in found for kind in kinds.split("+")}
        return tuple(kind for kind in allow if kind not in usable)


def read_request(source: Source, given: Mapping[str, Any]) -> PlanRequest:
    """The request that the options of ``schedsim plan`` make.

    Raises
    ------
    SchedsimError
        A value is out of range, or two options do not go together.
    """
    allow = check_allowed(given["allow"]) if given["allow"] is not None else None
    planner = given["planner"]
    link = take_link(given)
    level_texts = tuple(given["memory_levels"])
    own = _own_options(planner, {**{name: given[name] for name in FLAGS}, "allow": allow}, link)
    check_levels(level_texts, planner)
    request = PlanRequest(
        source=replace(source, allow=allow or ()),
        budget=given["budget"],
        planner=planner,
        own=own,
        rules=take_rules(given),
        link=link,
        level_texts=level_texts,
        allocator=given["allocator"] or (EXACT if given["certificate"] is not None else None),
        allocator_options=read_options(given["allocator"], given["alloc_conf"]),
        maximize=given["maximize"],
        accumulate=read_accumulate(given["accumulate"]),
        chunk=read_chunk(given["chunk"]),
        price_all=given["price_all"],
        as_json=given["as_json"],
        output=given["output"],
        certificate=given["certificate"],
    )
    _check_together(request)
    return request


def _check_together(request: PlanRequest) -> None:
    """Refuse options that ``--maximize`` or changes of a model's step cannot honour."""
    _check_certificate(request)
    for name in request.rules:
        if request.maximize is not None or request.changes_step:
            other = "--maximize" if request.maximize is not None else _step_flag(request)
            raise SchedsimError(
                f"{RULE_FLAGS[name]} does not go with {other}",
                hint=f"leave {RULE_FLAGS[name]} out: its patterns name parts of one unchanged step",
            )
    _check_recompute(request)
    if request.maximize is not None:
        _check_maximum(request.maximize, request.source)
    if not request.changes_step:
        return
    flag = _step_flag(request)
    if request.maximize is not None:
        raise SchedsimError(
            f"--maximize does not go with {flag}",
            hint="find the largest size first, then plan that size",
        )
    for other, is_given in (
        ("--allocator", request.allocator not in (None, EXACT)),
        ("--memory-level", bool(request.level_texts)),
        ("--allow", "allow" in request.own),
    ):
        if is_given:
            raise SchedsimError(
                f"{other} does not go with {flag}",
                hint=f"leave {other} out: changes of a step are priced by tensors on one device",
            )


def _check_recompute(request: PlanRequest) -> None:
    """Refuse options that do not go with forced recomputation, before anything is planned."""
    if request.level_texts and request.rules:
        flag = RULE_FLAGS[next(iter(request.rules))]
        raise SchedsimError(
            f"{flag} does not go with --memory-level", hint="leave one of the two out"
        )
    if "recompute" not in request.rules:
        return
    check_beside_recompute({**request.own, "link": request.link}, as_flags=True)


def _check_certificate(request: PlanRequest) -> None:
    """Refuse plans that no certificate covers, before anything is planned."""
    if request.certificate is None:
        return
    for other, is_given in (
        ("--maximize", request.maximize is not None),
        ("--allocator", request.allocator not in (None, EXACT)),
        ("--memory-level", bool(request.level_texts)),
        ("--link", bool(request.link)),
        ("--allow", bool(request.own.get("allow"))),
        ("--keep and --recompute", bool(request.rules)),
        ("--accumulate, --chunk and --ways", request.changes_step),
    ):
        if is_given:
            raise SchedsimError(
                f"--certificate does not go with {other}",
                hint="certificates cover one step on one stream, on exact bytes",
            )


def _check_maximum(field: str, source: Source) -> None:
    """Refuse options that hold only at the given size."""
    if field in source.given and (field != "layers" or "preset" in source.given):
        raise SchedsimError(
            f"--maximize {field} chooses it: --{field} {source.given[field]} does not go with it",
            hint=f"leave --{field} out",
        )
    if "times_path" in source.given:
        raise SchedsimError(
            f"--times does not go with --maximize {field}: measured times hold for one size",
            hint="leave --times out: --device and --efficiency hold at every size",
        )


def _step_flag(request: PlanRequest) -> str:
    """The flag that changes the step, for an error message."""
    if request.accumulate is not None:
        return "--accumulate"
    return "--chunk" if request.chunk is not None else "--ways"


def _own_options(planner: str, more: dict[str, Any], link: Mapping[str, Any]) -> dict[str, Any]:
    """The options for the planner; one that the planner does not take is refused."""
    given = {name: value for name, value in more.items() if value is not None}
    taken = set(get_planner(planner).options())
    for name in link:
        if name not in taken:
            raise SchedsimError(
                f"planner {planner!r} does not take {LINK_FLAGS[name]}",
                hint="leave --planner out, or see `schedsim planners` for those that offload",
            )
    if not link and get_planner(planner).needs_link:
        raise SchedsimError(f"planner {planner!r} needs --link", hint="--link pcie4, or SIZE/s")
    if "seed" in taken:
        taken.add("search_seed")
    for name, value in given.items():
        if name not in taken:
            able = [FLAGS[n] for n in FLAGS if n in taken]
            raise SchedsimError(
                f"planner {planner!r} does not take {FLAGS[name]}",
                hint=f"it takes {', '.join(able)}" if able else f"leave {FLAGS[name]} out",
            )
        least = 1 if name == "num_slots" else 0
        # written so that nan is refused too
        if name not in ("order", "allow") and not value >= least:
            raise SchedsimError(
                f"{FLAGS[name]} {value} is not at least {least}", hint="give a number that is"
            )
    if "search_seed" in given:  # --seed belongs to synthetic workloads
        given["seed"] = given.pop("search_seed")
    return given
