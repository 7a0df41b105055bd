"""Configurations that a target can express, and the one nearest to a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..plans.plan import Plan
from ..simulation.schedule import Schedule
from ..simulation.simulator import simulate
from .host_copies import HostCopies, with_host_copies

if TYPE_CHECKING:
    from ..dataflow.chain import Chain
    from ..dataflow.graph import Graph


@dataclass(frozen=True)
class Choice:
    """One configuration of a target.

    Attributes
    ----------
    schedule
        The schedule that the target runs with this configuration.
    says
        The configuration in words.
    data
        The data that the adapter writes.
    host
        Tensors that the target holds in host memory between forward and backward.
    """

    schedule: Schedule
    says: str
    data: Mapping[str, Any] = field(default_factory=dict)
    host: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exported:
    """A plan exported to a target.

    Attributes
    ----------
    target, text, suffix
        The target's name, the text to write, and the suffix of the file.
    says
        The configuration in words.
    budget_bytes, peak_bytes
        The budget of the plan; the peak simulated for what the target runs.
    makespan_s, plan_s
        Step times of what the target runs, and of the plan.
    exact
        Whether the target runs the plan itself, op for op.
    schedule
        The schedule that the target runs, copies to host memory and back included.
    host_bytes
        Bytes held in host memory between forward and backward.
    """

    target: str
    text: str
    suffix: str
    says: str
    budget_bytes: int
    peak_bytes: int
    makespan_s: float
    plan_s: float
    exact: bool
    schedule: Schedule = field(repr=False)
    host_bytes: int = 0

    @property
    def fits(self) -> bool:
        """Whether the simulated peak is within the plan's budget."""
        return self.peak_bytes <= self.budget_bytes

    @property
    def regret(self) -> float:
        """Extra step time relative to the plan's: 0.02 is 2 % slower."""
        return self.makespan_s / self.plan_s - 1.0 if self.plan_s else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The export as a JSON document, ``schedsim.export/1``."""
        sizes = ("target", "says", "budget_bytes", "peak_bytes", "host_bytes")
        names = (*sizes, "makespan_s", "plan_s", "exact")
        document = {name: getattr(self, name) for name in names}
        return {
            "schema": "schedsim.export/1",
            **document,
            "fits": self.fits,
            "regret": self.regret,
            "text": self.text,
        }


def own_runs(workload: Chain | Graph, plan: Plan) -> NDArray[np.int32]:
    """Runs of `plan` as indices of the workload's ops, its copies left out."""
    assert plan.schedule is not None
    known = frozenset(workload.op_names)
    names = plan.schedule.names
    schedule = plan.schedule
    if not known.issuperset(names):
        schedule = Schedule.from_names([name for name in names if name in known])
    return schedule.bind(workload)


class ReplayedChoice(Protocol):
    """The simulated cost of a configuration."""

    @property
    def schedule(self) -> Schedule:
        """The schedule, copies included."""

    @property
    def peak_bytes(self) -> int:
        """Peak of the device's memory."""

    @property
    def makespan_s(self) -> float:
        """Time of the step in seconds."""


def outcome_of(workload: Chain | Graph, plan: Plan, choice: Choice) -> ReplayedChoice:
    """The simulated cost of `choice`; its copies go over the link of the plan."""
    link = plan.setting.link
    if not choice.host or link is None:
        return simulate(workload, choice.schedule)
    return with_host_copies(workload, choice.schedule, choice.host, link)


def _fits(outcome: ReplayedChoice, plan: Plan) -> bool:
    link = plan.setting.link
    limit = None if link is None else link.host_bytes
    if isinstance(outcome, HostCopies) and limit is not None and outcome.host_bytes > limit:
        return False
    return outcome.peak_bytes <= plan.budget_bytes


def nearest(
    workload: Chain | Graph,
    plan: Plan,
    choices: Iterable[Choice],
    improve: Callable[[Choice], Iterator[Choice]] | None = None,
) -> tuple[Choice, Any]:
    """The fastest of `choices` within the plan's budget; the one of least peak if none fits.

    `improve` yields the neighbours of a choice; the search goes on while a neighbour is better.
    """
    best: tuple[tuple[bool, float, float], Choice, ReplayedChoice] | None = None

    def consider(choice: Choice) -> bool:
        nonlocal best
        outcome = outcome_of(workload, plan, choice)
        fits = _fits(outcome, plan)
        time_s, peak = outcome.makespan_s, float(outcome.peak_bytes)
        rank = (not fits, time_s if fits else peak, peak if fits else time_s)
        if best is not None and rank >= best[0]:
            return False
        best = rank, choice, outcome
        return True

    for choice in choices:
        consider(choice)
    assert best is not None, "every target can express something"
    while improve is not None:
        before = best
        for neighbour in improve(before[1]):
            consider(neighbour)
        if best is before:
            break
    return best[1], best[2]
