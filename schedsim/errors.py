"""Every error a user can meet, with the next step in the message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .plans.plan import Plan


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint for an unknown `name`: the nearest of the `known` names, or `otherwise` without one.

    Examples
    --------
    >>> did_you_mean("frontire", ["frontier", "rotor"], "one of frontier, rotor")
    "did you mean 'frontier'?"
    >>> did_you_mean("x", ["frontier", "rotor"], "one of frontier, rotor")
    'one of frontier, rotor'
    """
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


class SchedsimError(Exception):
    """Base of all errors raised on purpose.

    Parameters
    ----------
    message
        One line: what is wrong, where, and the value met.
    hint
        One line: what to do about it; may be empty.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")  # which Python prints below the message

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders; exceptions alone lose their keyword-only arguments there.
        return _restored, (type(self), self.args, self.__dict__.copy())


def _restored(
    kind: type[SchedsimError], arguments: tuple[Any, ...], state: dict[str, Any]
) -> SchedsimError:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(state)
    return error


class InvalidWorkloadError(SchedsimError, ValueError):
    """A chain, a graph or a file that describes one breaks a rule of its format.

    Parameters
    ----------
    message
        What is wrong, without the place.
    path
        The field, written ``stages[3].forward_s``; empty for the whole document.
    """

    def __init__(self, message: str, *, path: str = "", hint: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message, hint=hint)
        self.path = path
        self.reason = message


class InvalidScheduleError(SchedsimError, ValueError):
    """A schedule is not legal on its workload.

    Parameters
    ----------
    rule
        The broken rule: ``"unknown op"``, ``"missing input"``, ``"once"``, ``"required op"``,
        ``"evicted"``; ``"memory"`` where runs wait within capacities; ``"workload"`` for a plan of
        another workload; ``"claims"`` for a plan whose replay gives other numbers.
    run_index
        The offending run, 0-based; ``None`` where the fault is an absence.
    op_name
        The op concerned.
    """

    def __init__(
        self, message: str, *, rule: str, run_index: int | None, op_name: str, hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.rule = rule
        self.run_index = run_index
        self.op_name = op_name


class DeadlockError(InvalidScheduleError):
    """A schedule gets stuck: no run can start within the capacities of the memory pools.

    Parameters
    ----------
    waits
        A sentence for each stream that has runs left: which run waits, and for what.
    run_index, op_name
        The first run in the schedule that waits for memory.
    """

    def __init__(
        self,
        message: str,
        *,
        run_index: int | None,
        op_name: str,
        waits: tuple[str, ...],
        hint: str = "",
    ) -> None:
        super().__init__(message, rule="memory", run_index=run_index, op_name=op_name, hint=hint)
        self.waits = waits


class InfeasibleBudgetError(SchedsimError):
    """No schedule of the class searched fits the budget.

    Attributes
    ----------
    budget_bytes, min_feasible_bytes : int
        The budget that was asked for, and the least budget known to work (``None`` where unknown).
    plan : Plan
        The plan with status ``infeasible``, candidates included.
    """

    def __init__(self, message: str, *, plan: Plan, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.plan = plan
        self.budget_bytes = plan.budget_bytes
        self.min_feasible_bytes = plan.min_feasible_bytes


class PlannerLimitError(SchedsimError):
    """A planner refuses a workload that is larger than it can handle in reasonable time."""


class PlannerSkippedWarning(UserWarning):
    """A comparison leaves a planner out; the message says why."""


class UnsupportedError(SchedsimError):
    """The request is well formed, but this version does not support it."""


class MissingDependencyError(SchedsimError, ImportError):
    """An optional package is needed; the hint names the extra that installs it."""
