"""Plans as code or configuration of the frameworks in which people train.

Most targets cannot express every schedule. Simulation then finds the nearest configuration that the
target can express; the export has its true peak, and its extra time over the plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import SchedsimError, UnsupportedError, did_you_mean
from ..plans.plan import Plan
from ..plans.setting import refuse_levels
from ..plugins import load_plugin, load_plugins, plugin_names
from .choice import Choice, Exported, nearest, outcome_of

if TYPE_CHECKING:
    from ..dataflow.chain import Chain
    from ..dataflow.graph import Graph

GROUP = "schedsim.exports"

__all__ = [
    "TARGETS",
    "Choice",
    "Exported",
    "Target",
    "all_targets",
    "export",
    "get_target",
    "nearest",
    "target_names",
]


@dataclass(frozen=True, slots=True)
class Target:
    """A framework to export to.

    Attributes
    ----------
    name, kinds
        The name as on the command line; the kinds of workload that it takes.
    expresses
        Which schedules the framework can run, in words.
    adapter
        A module or an object with ``SUFFIX``, ``choose(workload, plan) -> (Choice, Simulation)``
        and ``render(workload, plan, choice, peak_bytes) -> str``. ``None`` for schedsim's own
        adapters, which are imported when used. An adapter may have ``VERSION``, the version of the
        framework that it writes for; ``OLDER``, adapters by earlier version; and ``OFFLOADS``,
        whether it can hold tensors in host memory.
    """

    name: str
    kinds: tuple[str, ...]
    expresses: str
    adapter: Any = field(default=None, repr=False)

    def load(self) -> Any:
        """The adapter."""
        if self.adapter is not None:
            return self.adapter
        return import_module(f".to_{self.name.replace('-', '_')}", __package__)

    def load_version(self, version: str | None) -> Any:
        """The adapter for a version of the framework; ``None`` means the current version.

        Raises
        ------
        SchedsimError
            There is no adapter for this version; the hint names the known versions.
        """
        adapter = self.load()
        current: str = getattr(adapter, "VERSION", "")
        older: dict[str, Any] = getattr(adapter, "OLDER", {})
        if version is None or (current and version == current):
            return adapter
        if version not in older:
            known = ", ".join([current, *older] if current else older)
            raise SchedsimError(
                f"{self.name} is not written for version {version!r}",
                hint=f"one of {known}"
                if known
                else "leave the version out: all versions take the same code",
            )
        return older[version]


TARGETS = {
    target.name: target
    for target in (
        Target("torch", ("chain",), "torch.utils.checkpoint around any segments of blocks"),
        Target("torch-sac", ("graph",), "selective checkpointing: per layer, which ops to save"),
        Target("torch-compile", ("graph",), "a solver for torch.compile's partitioner: a save set"),
        Target("torchtitan", ("chain",), "a policy: any layers, those of pipeline stages too"),
        Target("transformers", ("chain",), "activation checkpointing of any layers"),
        Target("megatron", ("chain", "graph"), "full: block or uniform; selective: modules"),
        Target("jax", ("chain", "graph"), "jax.checkpoint: segments, or names to save"),
        Target("maxtext", ("chain", "graph"), "remat_policy: full, or names to save"),
        Target("trl", ("chain",), "activation checkpointing of every n-th layer"),
        Target("axolotl", ("chain",), "activation checkpointing of every n-th layer"),
        Target("verl", ("chain",), "activation checkpointing of all layers, or none"),
        Target("nemo", ("chain", "graph"), "Megatron Bridge: full or modules, as Megatron's"),
    )
}


def target_names() -> list[str]:
    """Names of schedsim's targets and of other packages' targets; imports nothing."""
    return [*TARGETS, *plugin_names(GROUP, TARGETS)]


def all_targets() -> dict[str, Target]:
    """Every target by name: schedsim's own, then the loadable targets of other packages."""
    return {**TARGETS, **load_plugins(GROUP, _of_plugin, TARGETS)}


def get_target(name: str) -> Target:
    """The target called `name`.

    Raises
    ------
    SchedsimError
        There is no such target; the hint gives the nearest name, or all names.
    """
    if name in TARGETS:
        return TARGETS[name]
    known = target_names()
    if name in known:
        target: Target = load_plugin(GROUP, name, _of_plugin)
        return target
    raise SchedsimError(
        f"unknown target {name!r}",
        hint=did_you_mean(name, known, f"one of {', '.join(known)}"),
    )


def _of_plugin(name: str, found: Any) -> Target:
    if not isinstance(found, Target):
        raise SchedsimError(f"{found!r} is no schedsim.export.Target")
    if found.name != name:
        raise SchedsimError(f"it is a target called {found.name!r}")
    for needed in ("SUFFIX", "choose", "render"):
        if not hasattr(found.adapter, needed):
            raise SchedsimError(f"its adapter has no {needed}")
    return found


def export(workload: Chain | Graph, plan: Plan, to: str, *, version: str | None = None) -> Exported:
    """`plan` of `workload` as a configuration or code for the target `to`.

    Parameters
    ----------
    to
        A name of `target_names`.
    version
        Version of the framework; the current one by default.

    Returns
    -------
    Exported
        Its numbers are simulated for the schedule that the target runs, not copied from the plan.

    Raises
    ------
    SchedsimError
        There is no such target or version, or the plan has no schedule.
    UnsupportedError
        The target does not take such a workload; the plan has something that the target lacks
        (variants, copies to the host, memory levels, chunks, micro-batches); or the budget of the
        plan bounds what an allocator reserves.

    Examples
    --------
    >>> import schedsim
    >>> chain = schedsim.Chain.from_arrays("four", 4, forward_s=[1] * 4, backward_s=[2] * 4,
    ...                                    output_bytes=[4] * 4, saved_bytes=[20] * 4)
    >>> exported = export(chain, schedsim.plan(chain, 60), "torch")
    >>> exported.fits, exported.says
    (True, '2 of 4 stages checkpointed')
    """
    target = get_target(to)
    if plan.schedule is None or plan.makespan_s is None:
        raise SchedsimError("the plan is infeasible: it has no schedule", hint="plan again")
    if plan.variants:
        raise UnsupportedError(
            "the plan uses variants, for which no target has kernels", hint="plan without --allow"
        )
    adapter = target.load_version(version)
    _check_setting(plan)
    if workload.kind not in target.kinds:
        hint = "plan it by op" if workload.kind == "chain" else "plan it by layer or block"
        raise UnsupportedError(f"{to} does not take a {workload.kind}", hint=hint)
    _check_copies(workload, plan, to, adapter)
    choice, _ = adapter.choose(workload, plan)
    # Simulated here, so that the numbers belong to the exported schedule whatever the adapter says.
    outcome = outcome_of(workload, plan, choice)
    return Exported(
        target=to,
        text=adapter.render(workload, plan, choice, outcome.peak_bytes),
        suffix=adapter.SUFFIX,
        says=choice.says,
        budget_bytes=plan.budget_bytes,
        peak_bytes=outcome.peak_bytes,
        makespan_s=outcome.makespan_s,
        plan_s=plan.makespan_s,
        exact=outcome.schedule == plan.schedule,
        schedule=outcome.schedule,
        host_bytes=getattr(outcome, "host_bytes", 0),
    )


def _check_setting(plan: Plan) -> None:
    """Refuse a plan whose step or budget is another one than what is exported would have."""
    allocator, step = plan.setting.allocator, plan.setting.step
    if allocator is not None:
        raise UnsupportedError(
            f"the budget bounds what {allocator.name} reserves; exports are held to exact bytes",
            hint=f"plan without --allocator, within its --mem {allocator.inner_budget_bytes}",
        )
    if step is not None and step.chunk:
        raise UnsupportedError(
            f"the plan computes {', '.join(sorted(step.chunk))} in chunks, which no target does",
            hint="plan without chunk=",
        )
    if step is not None and step.accumulate != 1:
        raise UnsupportedError(
            f"the plan splits the step in {step.accumulate} micro-batches, which no export says",
            hint="plan a step of one micro-batch, and accumulate in the framework",
        )


def _check_copies(workload: Chain | Graph, plan: Plan, to: str, adapter: Any) -> None:
    """Refuse a plan with copies if no version of `adapter` can offload."""
    assert plan.schedule is not None
    unknown = set(plan.schedule.names) - set(workload.op_names)
    if not unknown:
        return
    refuse_levels(plan.setting, plan.schedule, "export")
    if not getattr(adapter, "OFFLOADS", False):
        others = [
            one.name
            for one in TARGETS.values()
            if workload.kind in one.kinds and getattr(one.load(), "OFFLOADS", False)
        ]
        raise UnsupportedError(
            f"the plan runs {min(unknown)}, and {to} copies nothing to the host",
            hint=f"plan without a link, or export to {', '.join(others)}",
        )
