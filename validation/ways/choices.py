"""The ways to spend less memory that a caller allows, each planned, and the quickest that fits."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from schedsim.dataflow.streams import HOST
from schedsim.errors import InfeasibleBudgetError, SchedsimError, UnsupportedError
from schedsim.plans.plan import Plan
from schedsim.units import format_bytes, format_bytes_short

from ..whole_step.captured_step import CapturedStep
from ..whole_step.step_capture import capture_step
from ..whole_step.step_planning import plan_captured, store_all_peak
from ..whole_step.step_settings import Settings
from .chunk import auto_chunks, read_chunks
from .microbatch import batch_size, check_splits
from .way import Way, table

Asked = tuple[dict[str, int], int, bool]
"""Chunks by piece, micro-batches, copies to the host."""

MARGIN = 0.03
"""Share of the time by which a way that rounds differently must be quicker than one that does not:
a smaller difference may be noise of the measured times."""

MAX_COUNTS = 6
"""Most numbers of micro-batches that ``accumulate="auto"`` tries."""


@dataclass(frozen=True)
class Chosen:
    """The result: the chosen way, its captured step and plan, and all ways that were considered."""

    way: Way
    captured: CapturedStep
    plan: Plan
    settings: Settings
    ways: tuple[Way, ...]


def wanted(settings: Settings) -> bool:
    """Whether `settings` allow any other way than recomputation."""
    return (
        bool(read_chunks(settings.chunk))
        or settings.accumulate not in (None, 1)
        or bool(settings.offload)
    )


def candidates(
    model: nn.Module,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    settings: Settings,
    *,
    price_all: bool = False,
) -> tuple[list[Asked], list[Way]]:
    """(chunks, micro-batches, offload) of each way to plan, and the ways that cannot be."""
    refused: list[Way] = []
    pieces: list[list[tuple[str, int] | None]] = []
    for piece, num in read_chunks(settings.chunk).items():
        if num != "auto":
            pieces.append([(piece, int(num))])
            continue
        try:
            found = auto_chunks(model, settings.loss, inputs, keywords, piece)
            pieces.append([None, (piece, found)] if found > 1 else [None])
        except SchedsimError as error:
            refused.append(Way({piece: 2}, 1, False, "refused", note=error.message))
    counts = [1]
    if settings.accumulate == "auto":
        try:
            check_splits(model)
            size = batch_size(inputs, keywords)
            divisors = [n for n in range(1, size + 1) if size % n == 0]
            counts = divisors[:MAX_COUNTS]
            if len(divisors) > MAX_COUNTS:
                picks = {
                    round(k * (len(divisors) - 1) / (MAX_COUNTS - 1)) for k in range(MAX_COUNTS)
                }
                counts = [divisors[k] for k in sorted(picks)]
        except UnsupportedError as error:
            refused.append(Way({}, 2, False, "refused", note=error.message))
    elif settings.accumulate not in (None, 1):
        check_splits(model)
        counts = [int(settings.accumulate)]
    copies = [False, True] if settings.offload else [False]
    if settings.offload and settings.level == "auto" and not price_all:
        copies = [True]  # copies need blocks; the other ways would be planned op by op
    found_all = []
    for picked in itertools.product(*pieces):
        chunks = dict(item for item in picked if item is not None)
        if "head" not in chunks and "mlp" in chunks and None in pieces[0] and len(pieces) > 1:
            continue  # chunks of the head take almost no time, and save more
        found_all += [(chunks, num, offload) for num in counts for offload in copies]
    return found_all, refused


def choose(
    model: nn.Module,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    settings: Settings,
    budget_bytes: int,
    first: CapturedStep | None = None,
    *,
    plan_all: bool = False,
    price_all: bool = False,
) -> Chosen:
    """The quickest way within `budget_bytes` of those that `settings` allow, within `MARGIN`.

    Parameters
    ----------
    first
        The plain step, if it has been captured already.
    plan_all
        Whether to plan also ways that cannot be quicker than one that fits, for their prices.
    price_all
        Whether to price also the ways that `settings` do not allow.

    Raises
    ------
    InfeasibleBudgetError
        No way fits; the message contains the table of ways.
    """
    asked, refused = candidates(model, inputs, keywords, settings)
    allowed = len(asked)
    if price_all:
        others, refused = candidates(model, inputs, keywords, _everything(settings), price_all=True)
        asked += [way for way in others if way not in asked]
    settings.ranks.same("compare ways", {"ways": asked})
    steps = captured_ways(model, inputs, keywords, settings, asked, first, refused)
    mine = asked[:allowed]
    best: _Priced | None = None
    done: list[_Priced] = []
    for step in sorted(steps, key=lambda step: step.least_s):
        least_s = step.least_s * (1.0 if step.way("").same_bits else 1.0 + MARGIN)
        if best is not None and least_s >= best.cost_s and not plan_all:
            done.append(_Priced(step, None, step.way("slower", step_s=step.least_s)))
            continue
        item = _priced(step, budget_bytes, step.asked in mine)
        done.append(item)
        if item.way.status == "fits" and (best is None or item.cost_s < best.cost_s):
            best = item
    if best is None:
        plans = [item.plan for item in done if item.plan and item.plan.schedule is None]
        what = f"no way that is allowed fits {format_bytes(budget_bytes)}"
        lines = "\n".join([f"{what}:", *table([*(item.way for item in done), *refused])])
        if not plans:
            raise UnsupportedError(lines, hint="give more")
        plan = min(plans, key=lambda plan: plan.min_feasible_bytes or 2 * budget_bytes)
        raise InfeasibleBudgetError(lines, plan=plan, hint="give more")
    assert best.plan is not None
    way = replace(best.way, status="chosen")
    ways = [way if item is best else item.way for item in done]
    return Chosen(way, best.step.captured, best.plan, best.step.settings, (*ways, *refused))


def price(
    model: nn.Module,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    settings: Settings,
    budget_bytes: int,
    first: CapturedStep,
) -> list[Way]:
    """All ways, planned; none is chosen, and none needs to fit."""
    settings = _everything(settings)
    asked, refused = candidates(model, inputs, keywords, settings, price_all=True)
    settings.ranks.same("compare ways", {"ways": asked})
    steps = captured_ways(model, inputs, keywords, settings, asked, first, refused)
    steps.sort(key=lambda step: step.least_s)
    return [*(_priced(step, budget_bytes, True).way for step in steps), *refused]


def _everything(settings: Settings) -> Settings:
    """`settings` in which everything that they leave open is searched."""
    return replace(
        settings,
        chunk="auto" if settings.chunk is None else settings.chunk,
        accumulate="auto" if settings.accumulate is None else settings.accumulate,
    )


@dataclass(frozen=True)
class _CapturedWay:
    """A way with its captured step."""

    asked: Asked
    captured: CapturedStep
    settings: Settings

    @property
    def least_s(self) -> float:
        """Seconds of a whole step that recomputes nothing."""
        return self.captured.num_parts * self.captured.store_all_s

    def way(self, status: str, **more: Any) -> Way:
        """The way with the facts that are known before planning."""
        most = store_all_peak(self.captured)
        return Way(*self.asked, status, store_all_bytes=most, **more)


@dataclass(frozen=True)
class _Priced:
    step: _CapturedWay
    plan: Plan | None
    way: Way

    @property
    def cost_s(self) -> float:
        """Seconds of the whole step, with the margin that a way with other bits must gain."""
        if self.way.step_s is None:
            return float("inf")
        return self.way.step_s * (1.0 if self.way.same_bits else 1.0 + MARGIN)


def captured_ways(
    model: nn.Module,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    settings: Settings,
    asked: list[Asked],
    first: CapturedStep | None,
    refused: list[Way],
) -> list[_CapturedWay]:
    """The ways that can be captured; others go to `refused`, unless only one was asked for.

    Parameters
    ----------
    asked
        What is captured.
    first
        The plain step, if it has been captured already.
    """
    steps = []
    for chunks, num, offload in asked:
        link = settings.offload if offload else None
        each = replace(settings, chunk=dict(chunks), accumulate=num, offload=link)
        plain = not chunks and num == 1 and not offload
        try:
            captured = first if plain and first is not None else None
            captured = captured or capture_step(model, inputs, keywords, each)
        except SchedsimError as error:
            if len(asked) == 1:
                raise
            refused.append(Way(chunks, num, offload, "refused", note=error.message))
            continue
        steps.append(_CapturedWay((chunks, num, offload), captured, each))
    if not steps:
        raise UnsupportedError(
            "none of the ways that are allowed works: " + "; ".join(way.note for way in refused),
            hint="leave chunk= and accumulate= out",
        )
    return steps


def _priced(step: _CapturedWay, budget_bytes: int, allowed: bool) -> _Priced:
    plan = plan_captured(step.captured, budget_bytes, step.settings)
    if plan.schedule is None or plan.makespan_s is None:
        least = plan.min_feasible_bytes
        note = f"least budget {format_bytes(least)}" if least else ""
        return _Priced(step, plan, step.way("does not fit", note=note))
    step_s = step.captured.num_parts * plan.makespan_s
    status, note = "fits" if allowed else "fits, not allowed", ""
    if step.asked[2]:
        host_bytes = plan.simulate(step.captured.workload).peak_by_pool.get(HOST, 0)
        note = f"{format_bytes_short(host_bytes)} on the host" if host_bytes else "copies nothing"
    way = step.way(status, step_s=step_s, peak_bytes=plan.peak_bytes, note=note)
    return _Priced(step, plan, way)
