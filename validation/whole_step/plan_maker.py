"""Makes the plan of one step of a model: at the level that gives the plain step, with the ranks."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum, auto
from typing import Any

from torch import nn

from schedsim.errors import InfeasibleBudgetError, UnsupportedError
from schedsim.plans.budgets import is_share

from ..autocasts import Autocast, backward_within
from ..guards.differential import Difference
from ..guards.plan_variants import RoundingWarning
from ..guards.recording import kept_generators
from ..ranks import ALONE, Ranks
from ..ranks.members import communicates
from ..ranks.wrappers import why_not_compared
from ..user_warnings import warn_user
from ..ways.choices import choose, wanted
from ..ways.helpful import with_helpful_ways
from .captured_step import CapturedStep
from .step_bound import kept_within
from .step_capture import BlockLevelWarning, capture_step
from .step_check import compare
from .step_key import key_digest
from .step_planning import PlannedStep, plan_step, planned_step, resolved_budget, store_all_peak
from .step_settings import Settings


class Coming(Enum):
    """Whether ranks that need not follow one plan make the next one together."""

    ALL = auto()
    PERHAPS = auto()
    NONE = auto()


class PlanMaker:
    """Captures steps of a model, plans them, and compares them with the plain step.

    Parameters
    ----------
    outer
        The module that runs the steps, around which a wrapper may be; no reference to it is kept.
    max_shapes
        The number of shapes whose captures are kept.

    Attributes
    ----------
    budget_bytes
        The budget in bytes, once a step has told what a share is of.
    captured
        Captures and measurements, which another budget needs again.
    bucket_bytes
        Of the wrapper that averages gradients, once a step has shown it.
    coming
        Which ranks plan the next step with this one.
    changes
        Number of changes of plans by the caller; the same on all ranks.
    backward_autocast
        In which the loop calls backward(), once it has.
    """

    def __init__(
        self, outer: nn.Module, model: nn.Module, settings: Settings, max_shapes: int
    ) -> None:
        self._outer = weakref.ref(outer)
        self.model, self.settings, self.max_shapes = model, settings, max_shapes
        self.budget_bytes: int | None = None
        self.captured: OrderedDict[Any, CapturedStep] = OrderedDict()
        self.bucket_bytes = 0
        self.coming = Coming.ALL
        self.changes = 0
        self.backward_autocast = Autocast()
        self._num_plans = 0

    @property
    def outer(self) -> nn.Module:
        """The module that runs the steps."""
        outer = self._outer()
        assert outer is not None
        return outer

    def _those_that_come(self) -> Ranks:
        """The ranks that plan the next step with this one."""
        ranks = self.settings.ranks
        if ranks.bound or ranks.alone or self.coming is Coming.ALL:
            return ranks
        return ranks if self.coming is Coming.PERHAPS and ranks.meet() else ALONE

    def _with_planners(self, settings: Settings, key: Any) -> Settings:
        """`settings` with those of its ranks whose step is the same."""
        ranks = settings.ranks
        if ranks.bound or ranks.alone:
            return settings
        # Nothing in these steps is a collective: each may follow a plan of its own, and does where
        # its steps are not those of the others.
        state = self.changes, self.budget_bytes is None, self.bucket_bytes
        rows = ranks.gather((key_digest(key), settings.alike(), state), "compare steps")
        return settings if len(set(rows)) == 1 else replace(settings, ranks=ALONE)

    def plan(
        self, key: Any, inputs: tuple[Any, ...], keywords: Mapping[str, Any], level: str | None
    ) -> PlannedStep:
        """A plan whose step is the plain one, as far as `check` asks; if need be at the next level.

        All ranks that plan together come here, and go on with the same level.
        """
        settings = self.settings if level is None else replace(self.settings, level=level)
        if settings.ranks.bound < communicates(self.model):
            raise UnsupportedError(
                f"{type(self.model).__name__} was spread over ranks after it was planned",
                hint="shard it first, and rematerialize it then",
            )
        coming = self._those_that_come()
        settings = replace(settings, ranks=coming)

        def planned_at(settings: Settings) -> tuple[PlannedStep, Ranks]:
            found = self._with_planners(settings, key)
            try:
                planned = self._planned_for(key, inputs, keywords, found)
            except InfeasibleBudgetError as error:
                raise with_helpful_ways(error, self.model, inputs, keywords, found) from None
            assert self.budget_bytes is not None
            given = (inputs, keywords)
            return kept_within(self.model, found, planned, self.budget_bytes, given), found.ranks

        with (
            kept_generators(self.model, settings.loss),
            backward_within(self.backward_autocast),
        ):
            budget_bytes = self.budget_bytes
            planned, ranks = coming.together("plan a step", lambda: planned_at(settings))
            planned, difference = self.compared(planned, inputs, keywords, ranks)
            if (
                difference is not None
                and planned.captured.level == "op"
                and settings.level == "auto"
            ):
                by_op, self.budget_bytes = planned, budget_bytes
                try:
                    lower = replace(settings, level="block", compile=False, ranks=ranks)
                    planned = ranks.together(
                        "plan a step", lambda: self._planned_for(key, inputs, keywords, lower)
                    )
                    planned, at_block = self.compared(planned, inputs, keywords, ranks)
                    if at_block is None or not difference.rounding:
                        warn_user(
                            f"{type(self.model).__name__} is planned by blocks, as op by op its "
                            f"step is another: {difference}",
                            BlockLevelWarning,
                        )
                        difference = at_block
                except (UnsupportedError, InfeasibleBudgetError):
                    if difference is None or not difference.rounding:
                        raise
                    planned, self.budget_bytes = by_op, by_op.plan.budget_bytes
        self.coming = Coming.NONE
        planned = self.numbered(planned)
        return planned if difference is None else self.accept(planned, difference)

    def numbered(self, planned: PlannedStep) -> PlannedStep:
        self._num_plans += 1
        return replace(planned, number=self._num_plans)

    def accept(self, planned: PlannedStep, difference: Difference) -> PlannedStep:
        """`planned` with a warning where it rounds otherwise; an error where it is another step."""
        name = type(self.model).__name__
        if not difference.rounding:
            raise UnsupportedError(
                f"the planned step of {name} by {planned.captured.level} is not the plain one: "
                f"{difference}",
                hint="nothing was planned; plan by the other level, or train without",
            )
        line = f"the planned step of {name} is the plain one within rounding: {difference}"
        warn_user(line, RoundingWarning)
        return planned

    def compared(
        self,
        planned: PlannedStep,
        inputs: tuple[Any, ...],
        keywords: Mapping[str, Any],
        ranks: Ranks = ALONE,
    ) -> tuple[PlannedStep, Difference | None]:
        """`planned` with how its step compares with the plain one, here and on all of `ranks`."""
        why = why_not_compared(self.outer)
        if why is None:
            note, difference = compare(self.model, self.settings, planned, inputs, keywords)
        else:
            note, difference = f"not compared with the plain step: {why}", None
        if not ranks.alone:
            told = None if difference is None else (difference.what, difference.rounding)
            rows = [row for row in ranks.gather(told, "compare steps") if row is not None]
            if rows and difference is None:
                difference = Difference(f"on another rank, {rows[0][0]}", all(r for _, r in rows))
        return replace(planned, check_note=note), difference

    def _planned_for(
        self,
        key: Any,
        inputs: tuple[Any, ...],
        keywords: Mapping[str, Any],
        settings: Settings,
    ) -> PlannedStep:
        model = self.model
        given = (inputs, keywords)
        if not wanted(settings):
            captured = self._captured_for(key, inputs, keywords, settings)
            if self.bucket_bytes:
                captured = captured.with_added(captured.added_bytes + self.bucket_bytes)
            most = store_all_peak(captured)
            if self.budget_bytes is None:
                self.budget_bytes = resolved_budget(settings, captured, model, given)[0]
            return plan_step(captured, self.budget_bytes, most, settings, given)
        first = None
        extra_bytes = settings.extra_bytes + self.bucket_bytes
        settings = replace(settings, extra_bytes=extra_bytes)
        if self.budget_bytes is None:
            if isinstance(settings.budget, str) and is_share(settings.budget):
                plain = replace(settings, chunk=None, accumulate=None, offload=None)
                first = capture_step(model, inputs, keywords, plain)
            budget_bytes = resolved_budget(settings, first, model, given)[0]
        else:
            budget_bytes = self.budget_bytes
        chosen = choose(model, inputs, keywords, settings, budget_bytes, first)
        self.budget_bytes = budget_bytes
        most = store_all_peak(first if first is not None else chosen.captured)
        return planned_step(chosen.captured, chosen.plan, most, chosen.settings, chosen.ways)

    def _captured_for(
        self,
        key: Any,
        inputs: tuple[Any, ...],
        keywords: Mapping[str, Any],
        settings: Settings,
    ) -> CapturedStep:
        """The step captured, once for inputs like these: another budget takes no new capture."""
        key = (key, settings.ranks.alone, settings.level, self.backward_autocast)
        captured = self.captured.pop(key, None)
        recorded = captured.recorded if captured is not None else None
        if recorded is not None and recorded.questions:
            captured = None  # its answers may be those of other inputs
        lasts = captured is not None and not (captured.guards and captured.guards.change())
        if not settings.ranks.all(lasts, "compare steps") or captured is None:
            captured = capture_step(self.model, inputs, keywords, settings)
        self.captured[key] = captured
        while len(self.captured) > self.max_shapes:
            self.captured.popitem(last=False)
        return captured
