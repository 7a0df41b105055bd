"""A plan made once, on the first rank, and followed by all ranks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

from schedsim.dataflow.chain import Chain
from schedsim.dataflow.graph import Graph
from schedsim.errors import SchedsimError
from schedsim.files.document import to_dict
from schedsim.files.workload_files import workload_hash
from schedsim.plans.plan import Plan

from .ranks import Ranks


def plan_hash(plan: Plan) -> str:
    """SHA-256 of the plan's file."""
    return hashlib.sha256(json.dumps(to_dict(plan), sort_keys=True).encode()).hexdigest()


def planned_once(make: Callable[[], Plan], workload: Chain | Graph, ranks: Ranks) -> Plan:
    """The result of ``make()``, called on the first rank alone, on all ranks.

    Raises
    ------
    Exception
        The error that ``make`` raised, on all ranks.
    SchedsimError
        A rank received another plan than was made, or has another workload.
    """
    if ranks.alone:
        return make()
    made = ranks.together("plan", lambda: make() if ranks.is_first else None)
    plan = ranks.from_first(made, "send the plan")
    assert plan is not None
    check_one_plan(plan, workload, ranks)
    return plan


def check_one_plan(plan: Plan, workload: Chain | Graph, ranks: Ranks) -> None:
    """Raise on all ranks unless all of them have the same plan, for the same workload."""
    rows = ranks.gather((plan_hash(plan), workload_hash(workload)), "compare plans")
    for rank, row in zip(ranks.members, rows, strict=True):
        for mine, its, what in zip(rows[0], row, ("plan", "step"), strict=True):
            if mine != its:
                raise SchedsimError(
                    f"rank {rank} has another {what} than rank {ranks.members[0]}: "
                    f"{its[:12]} instead of {mine[:12]}",
                    hint="ranks whose parameters are sharded follow one plan; give all the same",
                )
