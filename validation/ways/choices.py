"""The ways to spend less that a caller allows, each planned, and the quickest that fits."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import nn

from schedsim.errors import InfeasibleBudgetError, SchedsimError, UnsupportedError
from schedsim.plans import Plan
from schedsim.units import format_bytes, format_seconds

from .chunk import auto_chunks, read_chunks
from .microbatch import batch_size, check_splits

if TYPE_CHECKING:
    from ..step_planning import CapturedStep, Settings

MAX_COUNTS = 6
"""Numbers of micro-batches that ``accumulate="auto"`` looks at."""


@dataclass(frozen=True)
class Way:
    """One way to spend less, with its price.

    Attributes
    ----------
    chunks, num_parts, offload
        What is done: chunks by piece, micro-batches, copies to the host.
    status
        ``"chosen"``, ``"fits"``, ``"does not fit"``, ``"slower"`` (its ops alone take longer than
        the best plan, so that it was not planned) or ``"refused"``.
    step_s, peak_bytes, store_all_bytes
        Predicted for a whole step; ``None`` where there is no plan.
    same_bits
        Whether its gradients are those of the plain step to the bit; else within rounding.
    note
        Why it is refused, or the least budget.
    """

    chunks: Mapping[str, int]
    num_parts: int
    offload: bool
    status: str
    step_s: float | None = None
    peak_bytes: int | None = None
    store_all_bytes: int | None = None
    note: str = ""

    @property
    def name(self) -> str:
        """In words."""
        words = [f"{piece} in {num} chunks" for piece, num in self.chunks.items()]
        words += [f"{self.num_parts} micro-batches"] if self.num_parts > 1 else []
        words += ["offload"] if self.offload else []
        return ", ".join(words) or "recompute alone"

    @property
    def same_bits(self) -> bool:
        """Whether nothing is rounded otherwise."""
        return not any(num > 1 for num in self.chunks.values()) and self.num_parts == 1

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "chunks": dict(self.chunks),
            "num_parts": self.num_parts,
            "offload": self.offload,
            "status": self.status,
            "step_s": self.step_s,
            "peak_bytes": self.peak_bytes,
            "store_all_bytes": self.store_all_bytes,
            "same_bits": self.same_bits,
            "note": self.note,
        }


def table(ways: list[Way]) -> list[str]:
    """Lines of a table of `ways`."""
    rows = [("way to spend less", "peak", "step", "bits", "")]
    for way in ways:
        peak = format_bytes(way.peak_bytes) if way.peak_bytes is not None else "-"
        step = format_seconds(way.step_s) if way.step_s is not None else "-"
        bits = "same" if way.same_bits else "rounded"
        rows.append((way.name, peak, step, bits, f"{way.status}{': ' if way.note else ''}{way.note}"))
    widths = [max(len(row[k]) for row in rows) for k in range(4)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), row[1].rjust(widths[1]), row[2].rjust(widths[2])]
            + [row[3].ljust(widths[3]), row[4]]
        ).rstrip()
        for row in rows
    ]


@dataclass(frozen=True)
class Chosen:
    """What came out: the way, its captured step and plan, and all ways that were looked at."""

    way: Way
    captured: CapturedStep
    plan: Plan
    settings: Settings
    ways: tuple[Way, ...]


def wanted(settings: Settings) -> bool:
    """Whether `settings` allow any other way than recomputation."""
    return bool(read_chunks(settings.chunk)) or settings.accumulate not in (None, 1) or bool(
        settings.offload
    )


def candidates(
    model: nn.Module, inputs: tuple[Any, ...], keywords: Mapping[str, Any], settings: Settings
) -> tuple[list[tuple[dict[str, int], int, bool]], list[Way]]:
    """What to plan, as (chunks, micro-batches, offload), and the ways that cannot be."""
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
                picks = {round(k * (len(divisors) - 1) / (MAX_COUNTS - 1)) for k in range(MAX_COUNTS)}
                counts = [divisors[k] for k in sorted(picks)]
        except UnsupportedError as error:
            refused.append(Way({}, 2, False, "refused", note=error.message))
    elif settings.accumulate not in (None, 1):
        check_splits(model)
        counts = [int(settings.accumulate)]
    copies = {None: [False], False: [False], True: [True], "auto": [False, True]}[settings.offload]
    found_all = []
    for picked in itertools.product(*pieces):
        chunks = dict(item for item in picked if item is not None)
        found_all += [(chunks, num, offload) for num in counts for offload in copies]
    return found_all, refused


def concrete(settings: Settings, chunks: Mapping[str, int], num: int, offload: bool) -> Settings:
    """`settings` with one way decided."""
    return replace(settings, chunk=dict(chunks), accumulate=num, offload=offload)


def choose(
    model: nn.Module,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    settings: Settings,
    budget_bytes: int,
    first: CapturedStep | None = None,
    *,
    plan_all: bool = False,
) -> Chosen:
    """The quickest way within `budget_bytes` among those that `settings` allow.

    Parameters
    ----------
    first
        The plain step, where it is captured already.
    plan_all
        Plan also the ways that cannot be quicker than one that fits, for their prices.

    Raises
    ------
    InfeasibleBudgetError
        None fits; the message has the table.
    """
    from ..step_planning import capture_step, plan_captured, store_all_peak

    asked, ways = candidates(model, inputs, keywords, settings)
    steps: list[tuple[float, CapturedStep, Settings, tuple[dict[str, int], int, bool]]] = []
    automatic = len(asked) > 1
    for chunks, num, offload in asked:
        each = concrete(settings, chunks, num, offload)
        plain = not chunks and num == 1 and not offload
        try:
            captured = first if plain and first is not None else None
            captured = captured or capture_step(model, inputs, keywords, each)
        except SchedsimError as error:
            if not automatic:
                raise
            ways.append(Way(chunks, num, offload, "refused", note=error.message))
            continue
        least_s = captured.num_parts * captured.store_all_s
        steps.append((least_s, captured, each, (chunks, num, offload)))
    if not steps:
        raise UnsupportedError(
            "none of the ways that are allowed works: " + "; ".join(way.note for way in ways),
            hint="leave chunk= and accumulate= out",
        )
    best: tuple[float, Chosen] | None = None
    done: list[Way] = []
    infeasible: list[Plan] = []
    for least_s, captured, each, (chunks, num, offload) in sorted(steps, key=lambda s: s[0]):
        way = Way(chunks, num, offload, "slower", least_s, None, store_all_peak(captured))
        if best is not None and least_s >= best[0] and not plan_all:
            done.append(way)
            continue
        plan = plan_captured(captured, budget_bytes, each)
        if plan.schedule is None or plan.makespan_s is None:
            least = plan.min_feasible_bytes
            infeasible.append(plan)
            note = f"least budget {format_bytes(least)}" if least else ""
            done.append(replace(way, status="does not fit", step_s=None, note=note))
            continue
        step_s = captured.num_parts * plan.makespan_s
        way = replace(way, status="fits", step_s=step_s, peak_bytes=plan.peak_bytes)
        done.append(way)
        if best is None or step_s < best[0]:
            best = step_s, Chosen(way, captured, plan, each, ())
    if best is None:
        assert infeasible
        lines = "\n".join(table([*done, *ways]))
        raise InfeasibleBudgetError(
            f"no way that is allowed fits {format_bytes(budget_bytes)}:\n{lines}",
            plan=min(infeasible, key=lambda plan: plan.min_feasible_bytes or plan.budget_bytes * 2),
            hint="give more, or allow other ways: chunk='auto', accumulate='auto'",
        )
    found = best[1]
    way = replace(found.way, status="chosen")
    every = [way if other is found.way else other for other in done]
    return replace(found, way=way, ways=(*every, *ways))
