"""Plans in the words of the frameworks in which people train.

Most targets cannot express every schedule. The nearest configuration they can is then found by
simulation, and comes with its true peak and with what it costs over the plan.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import SchedsimError, UnsupportedError
from ..plans.plan import Plan
from .choice import Choice, Exported, nearest

if TYPE_CHECKING:
    from ..dataflow.chain import Chain
    from ..dataflow.graph import Graph

__all__ = ["TARGETS", "Choice", "Exported", "Target", "export", "nearest"]


@dataclass(frozen=True, slots=True)
class Target:
    """A framework to export to; its module below `schedsim.export` has ``export``."""

    name: str
    kinds: tuple[str, ...]
    expresses: str

    @property
    def module(self) -> str:
        """Name of the module."""
        return f"to_{self.name.replace('-', '_')}"


TARGETS = {
    target.name: target
    for target in (
        Target("torch", ("chain",), "torch.utils.checkpoint around any segments of blocks"),
        Target("torch-sac", ("graph",), "selective checkpointing: per layer, which ops to save"),
        Target("torch-compile", ("graph",), "a solver for torch.compile's partitioner: a save set"),
        Target("torchtitan", ("chain",), "none, full, or every n-th layer"),
        Target("transformers", ("chain",), "gradient checkpointing of any layers"),
        Target("megatron", ("chain",), "full recompute, block or uniform"),
        Target("jax", ("chain", "graph"), "jax.checkpoint: segments, or names to save"),
        Target("maxtext", ("chain", "graph"), "remat_policy: full, none, or names to save"),
    )
}


def export(workload: Chain | Graph, plan: Plan, to: str) -> Exported:
    """`plan` of `workload` as a configuration or code for the target `to`.

    Parameters
    ----------
    to
        A name in `TARGETS`.

    Returns
    -------
    Exported
        Simulated: what the target runs, not what the plan says.

    Raises
    ------
    SchedsimError
        There is no such target, or the plan has no schedule.
    UnsupportedError
        The target does not take such a workload, or the plan does what no target can: variants,
        copies to the host.

    Examples
    --------
    >>> import schedsim
    >>> chain = schedsim.Chain.from_arrays("four", 4, forward_s=[1] * 4, backward_s=[2] * 4,
    ...                                    output_bytes=[4] * 4, saved_bytes=[20] * 4)
    >>> exported = export(chain, schedsim.plan(chain, 60), "torch")
    >>> exported.fits, exported.says
    (True, '2 of 4 stages checkpointed')
    """
    if to not in TARGETS:
        near = difflib.get_close_matches(to, TARGETS, n=1)
        raise SchedsimError(
            f"unknown target {to!r}",
            hint=f"did you mean {near[0]!r}?" if near else f"one of {', '.join(TARGETS)}",
        )
    target = TARGETS[to]
    if plan.schedule is None or plan.makespan_s is None:
        raise SchedsimError("the plan is infeasible: it has no schedule", hint="plan again")
    if plan.variants:
        raise UnsupportedError(
            "the plan uses variants, for which no target has kernels", hint="plan without --allow"
        )
    unknown = set(plan.schedule.names) - set(workload.op_names)
    if unknown:
        raise UnsupportedError(
            f"the plan runs {min(unknown)}, which no target can express",
            hint="plan without a link to the host",
        )
    if workload.kind not in target.kinds:
        hint = "plan it by op" if workload.kind == "chain" else "plan it by layer or block"
        raise UnsupportedError(f"{to} does not take a {workload.kind}", hint=hint)
    module = import_module(f".{target.module}", __package__)
    choice, simulation = module.choose(workload, plan)
    return Exported(
        target=to,
        text=module.render(workload, plan, choice, simulation.peak_bytes),
        suffix=module.SUFFIX,
        says=choice.says,
        budget_bytes=plan.budget_bytes,
        peak_bytes=simulation.peak_bytes,
        makespan_s=simulation.makespan_s,
        plan_s=plan.makespan_s,
        exact=choice.schedule == plan.schedule,
        schedule=choice.schedule,
    )
