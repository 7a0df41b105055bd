"""The step of a loop that runs now: its calls, and what it was given."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..parts.output_uses import Result
from .step_calls import StepCalls


@dataclass
class PresentStep:
    """What the session of a model and its helpers share about the running step.

    Attributes
    ----------
    calls : StepCalls
        The calls of its parts.
    given
        Bytes, by the addresses of their storages, of what the step was given.
    inputs
        What it was given, watched.
    made_before
        Bytes of what the first part reads and the code before it has made.
    is_spoiled
        Whether the step ran what no later one will.
    replaced
        Indices of parts of which it was the last step, and of those that later ones run instead.
    thread
        The number of the thread in which its first part runs.
    """

    calls: StepCalls = field(default_factory=StepCalls)
    given: dict[int, int] = field(default_factory=dict)
    inputs: tuple[Result, ...] = ()
    made_before: int = 0
    is_spoiled: bool = False
    replaced: dict[int, int] = field(default_factory=dict)
    thread: int = 0

    @property
    def tells_bytes(self) -> bool:
        """Whether later steps take what this one takes."""
        return not (self.is_spoiled or self.replaced)

    def end(self) -> None:
        """The step is over, and the next one has no calls yet."""
        self.calls, self.is_spoiled, self.replaced = StepCalls(), False, {}
