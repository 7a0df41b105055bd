"""What a plan that copies runs on: the two directions of a link, and the host memory allowed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..dataflow.queues import DEVICE, HOST
from ..errors import SchedsimError, UnsupportedError
from ..simulation.schedule import Schedule
from ..simulation.simulator import Simulation, simulate
from ..units import parse_bytes
from .levels import MemoryLevels
from .links import Link, parse_link, with_copies

if TYPE_CHECKING:
    from ..dataflow.chain import Chain
    from ..dataflow.graph import Graph
    from .plan import Plan

# Ops that copy to host memory or another level, and back.
_COPY = re.compile(r"(d2h|h2d|write\d+|read\d+):")

LinkLike = Link | str | tuple[Link | str, Link | str]
"""A link, or its name or bandwidth as a text; or two of these, to the host and back."""


@dataclass(frozen=True, slots=True)
class Offloading:
    """A link to host memory, and how much of that there is.

    Parameters
    ----------
    d2h, h2d
        The directions to the host and back to the device.
    host_bytes
        Pinned host memory allowed; ``None`` for no limit.

    Examples
    --------
    >>> Offloading.over("25GB/s", host_bytes="64GiB").host_bytes
    68719476736
    """

    d2h: Link
    h2d: Link
    host_bytes: int | None = None

    @classmethod
    def over(
        cls,
        link: LinkLike,
        *,
        host_bytes: int | str | None = None,
        latency_s: float | None = None,
    ) -> Offloading:
        """From what people write: ``"pcie4"``, ``"25GB/s"``, a `Link`, or a pair of these.

        Parameters
        ----------
        latency_s
            Of links given as a text; none by default.

        Raises
        ------
        SchedsimError
            A text is no link, or `host_bytes` no size.
        """
        both = link if isinstance(link, tuple | list) else (link, link)
        if len(both) != 2:
            raise SchedsimError(
                f"{len(both)} links are given", hint="one, or a pair: to the host and back"
            )
        out, back = (
            one if isinstance(one, Link) else parse_link(one, latency_s or 0.0) for one in both
        )
        if isinstance(host_bytes, str):
            host_bytes = parse_bytes(host_bytes)
        if host_bytes is not None and (
            isinstance(host_bytes, bool) or not isinstance(host_bytes, int) or host_bytes < 0
        ):
            raise SchedsimError(
                f"host_bytes {host_bytes!r} is not a number of bytes",
                hint="an int of bytes, a text like '64GiB', or None for no limit",
            )
        return cls(out, back, host_bytes)

    def capacities(self, budget_bytes: int) -> dict[str, int]:
        """Pool -> bytes, as the engine takes them."""
        limits = {DEVICE: budget_bytes}
        return limits if self.host_bytes is None else {**limits, HOST: self.host_bytes}

    def graph(self, workload: Chain | Graph, schedule: Schedule) -> Graph:
        """The graph of `workload` with the copies that `schedule` runs."""
        copied = [
            name.partition(":")[2]
            for name in schedule.op_names
            if name.startswith(("d2h:", "h2d:")) and not _has_op(workload, name)
        ]
        if not copied:
            return workload.graph
        return with_copies(workload, d2h=self.d2h, h2d=self.h2d, tensors=dict.fromkeys(copied))

    def simulate(
        self, workload: Chain | Graph, schedule: Schedule, budget_bytes: int
    ) -> Simulation:
        """What `schedule`, copies included, costs on `workload` within `budget_bytes`."""
        graph = self.graph(workload, schedule)
        if graph.one_queue:
            return simulate(graph, schedule)
        return simulate(graph, schedule, capacities=self.capacities(budget_bytes))

    def to_options(self) -> dict[str, Any]:
        """What a plan's `options` store; `from_options` reads it."""
        links = [
            {"bytes_per_s": float(one.bytes_per_s), "latency_s": float(one.latency_s)}
            for one in (self.d2h, self.h2d)
        ]
        return {"link": {"d2h": links[0], "h2d": links[1]}, "host_bytes": self.host_bytes}

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Offloading | None:
        """The link of a plan with these options; ``None`` for one without.

        Raises
        ------
        SchedsimError
            The options hold something else.
        """
        stored = options.get("link")
        if stored is None:
            return None
        try:
            return cls.over(
                (Link(**stored["d2h"]), Link(**stored["h2d"])),
                host_bytes=options.get("host_bytes"),
            )
        except (TypeError, KeyError) as error:
            raise SchedsimError(
                f"options.link {stored!r} is not a link",
                hint="d2h and h2d, each with bytes_per_s and latency_s",
            ) from error


def replay(workload: Chain | Graph, plan: Plan, schedule: Schedule | None = None) -> Simulation:
    """What the schedule of `plan` costs on the workload that it runs on, with its copies.

    Where the plan has variants, that is the workload with these chosen (`variants.resolve`).
    `schedule` stands for the plan's own where that is given.
    """
    schedule = plan.schedule if schedule is None else schedule
    if schedule is None:
        raise SchedsimError("the plan has no schedule", hint="plan again with a larger budget")
    setting = setting_of(plan)
    if setting is None:
        return simulate(workload, schedule)
    return setting.simulate(workload, schedule, plan.budget_bytes)


def setting_of(plan: Plan) -> Offloading | MemoryLevels | None:
    """What the plan copies on: a link to host memory, memory levels, or nothing."""
    return Offloading.from_options(plan.options) or MemoryLevels.from_options(plan.options)


def _has_op(workload: Chain | Graph, name: str) -> bool:
    if workload.kind == "chain":
        return False
    try:
        workload.graph.op_index(name)
    except KeyError:
        return False
    return True


def refuse_levels(plan: Plan, what: str) -> None:
    """Refuse a plan that writes to memory levels, for `what`, which copies over a link alone.

    Raises
    ------
    UnsupportedError
        The schedule of `plan` has such ops.
    """
    if MemoryLevels.from_options(plan.options) is None or plan.schedule is None:
        return
    if any(_COPY.match(name) for name in plan.schedule.names):
        raise UnsupportedError(
            f"{what} takes no plan over memory levels",
            hint="schedsim simulate and plot do; or plan again with --link instead",
        )


def refuse_copies(plan: Plan | None, what: str) -> None:
    """Refuse a plan that copies, for `what`, which cannot take one.

    Raises
    ------
    UnsupportedError
        The schedule of `plan` has copies.
    """
    if plan is None or plan.schedule is None or setting_of(plan) is None:
        return
    if any(_COPY.match(name) for name in plan.schedule.names):
        raise UnsupportedError(
            f"{what} takes no plan that offloads",
            hint="schedsim simulate and plot do; or plan again without --link or --memory-level",
        )
