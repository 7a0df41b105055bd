"""Where a loop calls ``backward()``: within autocast or outside of it, as it was traced or not."""

from __future__ import annotations

from ..autocasts import Autocast, backward_autocast
from ..user_warnings import warn_user
from .plan_variants import RoundingWarning
from .state_change import StateChange


class BackwardAutocast:
    """The autocast for which a backward was traced, and another one in which it was run since.

    Attributes
    ----------
    traced
        The state of the trace.
    met : Autocast or None
        Another state in which the loop has called ``backward()``.
    """

    def __init__(self) -> None:
        self.traced = backward_autocast()
        self.met: Autocast | None = None

    def run_here(self, name: str) -> None:
        """Note, and say once, that the backward of `name` runs in another state than the traced."""
        now = Autocast.now()
        if now == self.traced or self.met is not None:
            return
        self.met = now
        warn_user(
            f"backward() of {name} runs {now}, and was traced {self.traced}: this step is the "
            "plain one within rounding",
            RoundingWarning,
        )

    @property
    def change(self) -> StateChange | None:
        """The change since the trace; ``None`` where the loop runs the backward as traced."""
        if self.met is None:
            return None
        return StateChange("the place of backward()", str(self.traced), str(self.met))
