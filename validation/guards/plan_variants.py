"""The plans of one form of a step: a plan for each state of Python seen, up to a few.

A loop may change an attribute, freeze a layer or register a hook. A plan for the former state is no
plan for the present state: another plan is made and kept beside it. Where the state changes every
few steps, no plan would last: the model is then planned by blocks, which run its own Python, and
where that is impossible, the plain step runs. Each such change is reported once.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..user_warnings import warn_user
from .state_change import StateChange

if TYPE_CHECKING:
    from ..whole_step.step_planning import PlannedStep

MAX_VARIANTS = 4
"""Most plans of one form of inputs, each for another state of Python."""


class ReplannedWarning(UserWarning):
    """The model's Python state has changed, and the step is planned anew."""


class PlainStepWarning(UserWarning):
    """A step runs as the model itself runs it: correctly, but not within the budget."""


class RoundingWarning(UserWarning):
    """A planned step equals the plain one within rounding, not to the bit."""


@dataclass
class Variants:
    """The plans for one form of inputs.

    Attributes
    ----------
    steps
        Planned steps, of which the last used is last.
    num_planned
        Number of plans made, including forgotten ones.
    level
        ``"block"`` once plans op by op have not lasted; ``"plain"`` once no plan would last.
    reasons
        Lines that were reported so far.
    """

    steps: list[PlannedStep] = field(default_factory=list)
    num_planned: int = 0
    level: str | None = None
    reasons: list[str] = field(default_factory=list)

    def fitting(
        self, but: tuple[PlannedStep, ...] = (), among: Container[int] | None = None
    ) -> PlannedStep | None:
        """The plan whose Python state is the present one, last used first; none of `but`.

        Where the plans that fit on all ranks are known, it is `among` them, by their numbers.
        """
        for step in reversed(self.steps):
            fits = step.change is None if among is None else step.number in among
            if fits and not any(step is other for other in but):
                if step is not self.steps[-1]:
                    self.steps.remove(step)
                    self.steps.append(step)
                return step
        return None

    def change(self) -> StateChange | None:
        """The change since the last plan was made."""
        return self.steps[-1].change if self.steps else None

    def forget_replaced(self) -> None:
        """Drop plans of tensors and modules that have left the model: they hold memory."""
        kept = []
        for step in self.steps:
            change = step.change
            if change is None or not change.is_replacement:
                kept.append(step)
        self.steps = kept

    def add(self, step: PlannedStep) -> None:
        """Keep `step`, and drop old ones."""
        self.steps.append(step)
        self.num_planned += 1
        del self.steps[:-MAX_VARIANTS]

    def give_up(self, name: str, why: str) -> None:
        """Make no more plans: in a state without a kept plan, the plain step runs."""
        self.level = "plain"
        self.say(f"steps of {name} run as they are, not within the budget: {why}", PlainStepWarning)

    def say(self, line: str, kind: type[UserWarning]) -> None:
        """Warn, once for each different line."""
        if line not in self.reasons:
            self.reasons.append(line)
            warn_user(line, kind)
