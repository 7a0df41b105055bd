"""Export of a pipeline: the layers that each stage recomputes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ..errors import UnsupportedError
from ..pipelines.run import PipelineRun, run_pipeline
from ..pipelines.sequence import stage_plan_of
from ..pipelines.stage_plans import StagePlan
from .segments import layers_of
from .to_torchtitan import policy

STAGE_TARGETS = ("torchtitan", "megatron")


@dataclass(frozen=True)
class ExportedStages:
    """The recomputation of a pipeline, exported to a target.

    Attributes
    ----------
    target, text
        As in `Exported`.
    layers : tuple of tuple of int
        For each stage the layers that run again, counted from the first layer of the stage.
    run : PipelineRun
        The simulation of what the target runs.
    plan_s, budget_bytes
        The plan's step time, and its budget of each device.
    """

    target: str
    text: str
    layers: tuple[tuple[int, ...], ...]
    run: PipelineRun
    plan_s: float
    budget_bytes: int

    @property
    def fits(self) -> bool:
        """Whether every device is within the budget."""
        return self.run.peak_bytes <= self.budget_bytes

    @property
    def regret(self) -> float:
        """Extra step time relative to the plan's."""
        return self.run.makespan_s / self.plan_s - 1.0 if self.plan_s else 0.0


def export_stages(planned: PipelineRun, budget_bytes: int, to: str) -> ExportedStages:
    """`planned` for the target `to`: the fastest recomputation that it can express in the budget.

    torchtitan can recompute any layers of a stage, given by their numbers in the whole model;
    Megatron-LM recomputes the same number of first layers in every stage (``--recompute-method
    block``). Both run a layer again right before its own backward, in all micro-batches alike.

    Parameters
    ----------
    budget_bytes
        Budget of each device.

    Raises
    ------
    UnsupportedError
        Another target, or a chain without layers.

    Notes
    -----
    Simulates the pipeline once for each candidate; their number is that of layers in the longest
    stage, plus three.
    """
    if to not in STAGE_TARGETS:
        raise UnsupportedError(
            f"{to} takes no plan for each stage of a pipeline",
            hint=f"one of {', '.join(STAGE_TARGETS)}",
        )
    pipeline = planned.pipeline
    real = layers_of(pipeline.chain, to)
    best: tuple[tuple[bool, float], PipelineRun, tuple[tuple[int, ...], ...]] | None = None
    for layers in _candidates(planned, real, to):
        plans = [
            _singles(len(pipeline.stage_layers(stage)), again) for stage, again in enumerate(layers)
        ]
        run = run_pipeline(pipeline, planned.order, plans)
        fits = run.peak_bytes <= budget_bytes
        rank = not fits, run.makespan_s if fits else float(run.peak_bytes)
        if best is None or rank < best[0]:
            best = rank, run, layers
    assert best is not None
    _, run, layers = best
    text = _text(planned, real, layers, to)
    return ExportedStages(to, text, layers, run, planned.makespan_s, budget_bytes)


def _singles(num_layers: int, again: Collection[int]) -> StagePlan:
    """A plan in which each layer in `again` runs again right before its own backward."""
    runs = []
    for i in range(num_layers - 1, -1, -1):
        runs += [f"F{i}", f"B{i}"] if i in again else [f"B{i}"]
    return StagePlan(tuple(runs))


def _candidates(
    planned: PipelineRun, real: range, to: str
) -> Iterator[tuple[tuple[int, ...], ...]]:
    pipeline = planned.pipeline
    own = [
        [i for i, layer in enumerate(pipeline.stage_layers(stage)) if layer in real]
        for stage in range(pipeline.num_stages)
    ]
    longest = max(map(len, own))
    for count in range(longest + 1):
        yield tuple(tuple(stage[:count]) for stage in own)
    if to != "torchtitan":
        return
    micros = range(pipeline.num_micro_batches)
    every: list[Sequence[set[int]]] = [
        [set(stage_plan_of(planned.plans, stage, micro).replays) for micro in micros]
        for stage in range(pipeline.num_stages)
    ]
    for combine in (set.union, set.intersection):
        yield tuple(
            tuple(sorted(combine(*sets) & set(mine))) for sets, mine in zip(every, own, strict=True)
        )


def _text(planned: PipelineRun, real: range, layers: tuple[tuple[int, ...], ...], to: str) -> str:
    pipeline = planned.pipeline
    if to == "torchtitan":
        found = [
            pipeline.stage_layers(stage)[i] - real.start
            for stage, again in enumerate(layers)
            for i in again
        ]
        return policy(pipeline.name, sorted(found), len(real))
    count = max(map(len, layers))
    if not count:
        return "# nothing to recompute: leave the --recompute arguments out\n"
    return (
        f"--recompute-granularity full\n--recompute-method block\n--recompute-num-layers {count}\n"
    )
