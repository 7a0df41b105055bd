"""The plans of one form of a step: one for each state of Python seen, few, and what comes after.

A loop may anneal an attribute, freeze a layer or register a hook. The plan of the state that was is
not the plan of the state that is: another is made and kept beside it. Where the state is another
every few steps, no plan would last: the model is planned by blocks, which run its own Python, and
where that cannot be, the plain step runs. Each is said once.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .state import StateChange

if TYPE_CHECKING:
    from ..step_planning import PlannedStep

MAX_VARIANTS = 4
"""Plans of one form of inputs, for so many states of Python."""


class ReplannedWarning(UserWarning):
    """The model's Python has changed, and the step is planned anew."""


class PlainStepWarning(UserWarning):
    """A step runs as the model itself would run it: right, and not within the budget."""


class RoundingWarning(UserWarning):
    """A planned step is the plain one within rounding, not to the bit."""


@dataclass
class Variants:
    """What was planned for one form of inputs.

    Attributes
    ----------
    steps
        The last used last.
    num_planned
        How many were made, those forgotten included.
    level
        ``"block"`` once plans op by op have not lasted; ``"plain"`` once no plan would.
    reasons
        Lines said so far.
    """

    steps: list[PlannedStep] = field(default_factory=list)
    num_planned: int = 0
    level: str | None = None
    reasons: list[str] = field(default_factory=list)

    def fitting(self, but: tuple[PlannedStep, ...] = ()) -> PlannedStep | None:
        """The plan, last used first, whose Python is as it was; not one of `but`."""
        for step in reversed(self.steps):
            if not any(step is other for other in but) and step.change is None:
                if step is not self.steps[-1]:
                    self.steps.remove(step)
                    self.steps.append(step)
                return step
        return None

    def change(self) -> StateChange | None:
        """What is not as the last plan has it."""
        return self.steps[-1].change if self.steps else None

    def forget_replaced(self) -> None:
        """Drop plans of tensors and modules that have left the model: they hold their memory."""
        kept = []
        for step in self.steps:
            change = step.change
            if change is None or not change.is_replacement:
                kept.append(step)
        self.steps = kept

    def add(self, step: PlannedStep) -> None:
        """Keep `step`, and few others."""
        self.steps.append(step)
        self.num_planned += 1
        del self.steps[:-MAX_VARIANTS]

    def give_up(self, name: str, why: str) -> None:
        """Make no more plans: a state of the model that no kept plan is of runs the plain step."""
        self.level = "plain"
        self.say(f"steps of {name} run as they are, not within the budget: {why}", PlainStepWarning)

    def say(self, line: str, kind: type[UserWarning]) -> None:
        """Warn, once for each line."""
        if line not in self.reasons:
            self.reasons.append(line)
            warnings.warn(line, kind, stacklevel=2)
