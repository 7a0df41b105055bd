"""Certificates: a schedule with its costs, and a bound with a proof that anybody can check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from .scope import Scope

CERTIFICATE_SCHEMA = "schedsim.certificate/1"

OPTIMAL_GAP = Fraction(1, 10**9)
"""Largest gap at which a schedule counts as optimal: sums of float times are rounded."""


@dataclass(frozen=True)
class ProvenBound:
    """No schedule of `scope` within the certificate's budget takes less than `bound_s`.

    Attributes
    ----------
    bound_s
        Seconds, exactly.
    proof
        The part ``proof`` of the file; ``docs/certificates.md`` says what each kind holds.
    """

    scope: Scope
    bound_s: Fraction
    proof: Mapping[str, Any]


@dataclass(frozen=True)
class ProvenLeast:
    """No schedule of `scope` fits in less than `least_bytes`."""

    scope: Scope
    least_bytes: int
    proof: Mapping[str, Any]


@dataclass(frozen=True)
class Certificate:
    """A schedule, its exact costs, and proofs of a bound on time and of the least budget.

    Attributes
    ----------
    instance
        The workload's ``name``, ``kind`` and ``content_hash``.
    schedule
        Names of ops in run order; ``None`` where no schedule was found.
    makespan_s
        The exact sum of the times of the runs; the floats of the file count as exact binary
        fractions.
    bound, least
        ``None`` where nothing is proven.
    planner
        The planner that found the schedule.
    document
        The workload itself, so that the certificate can be checked without another file.
    """

    instance: Mapping[str, str]
    budget_bytes: int
    planner: str
    schedule: tuple[str, ...] | None
    peak_bytes: int | None
    makespan_s: Fraction | None
    bound: ProvenBound | None
    least: ProvenLeast | None
    document: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def gap(self) -> Fraction | None:
        """makespan / bound - 1, exactly; ``None`` without a schedule or a bound."""
        if self.makespan_s is None or self.bound is None:
            return None
        if self.bound.bound_s == 0:
            return Fraction(0)
        return self.makespan_s / self.bound.bound_s - 1

    @property
    def optimal(self) -> bool:
        """Whether the schedule is proven to be the fastest of the bound's scope, to a billionth."""
        gap = self.gap
        return gap is not None and gap <= OPTIMAL_GAP

    def without_document(self) -> Certificate:
        """The certificate without the workload, for a reader who has it."""
        return replace(self, document=None)

    def to_dict(self) -> dict[str, Any]:
        """The content of a ``schedsim.certificate/1`` file."""
        gap = self.gap
        content: dict[str, Any] = {
            "schema": CERTIFICATE_SCHEMA,
            "instance": dict(self.instance),
            "budget_bytes": self.budget_bytes,
            "planner": self.planner,
            "peak_bytes": self.peak_bytes,
            "makespan_s": None if self.makespan_s is None else str(self.makespan_s),
            "gap": None if gap is None else str(gap),
            "optimal": self.optimal,
            "bound": None,
            "least": None,
            "schedule": None if self.schedule is None else list(self.schedule),
        }
        if self.bound is not None:
            content["bound"] = {
                "scope": str(self.bound.scope),
                "bound_s": str(self.bound.bound_s),
                "proof": dict(self.bound.proof),
            }
        if self.least is not None:
            content["least"] = {
                "scope": str(self.least.scope),
                "bytes": self.least.least_bytes,
                "proof": dict(self.least.proof),
            }
        if self.document is not None:
            content["workload"] = dict(self.document)
        return content
