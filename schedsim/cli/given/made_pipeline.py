"""The pipeline that the options describe, and its plan: made, or replayed from a file."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click

from ... import pipelines
from ...api import get_planner
from ...dataflow.chain import Chain
from ...errors import InvalidScheduleError, SchedsimError, UnsupportedError
from ...files.plan_files import source_to_dict
from ...pipelines import Pipeline, from_formula
from ...pipelines.plan_file import read_pipeline_plan
from ...plans.budgets import parse_budget
from ...plans.links import parse_link
from ...units import format_bytes
from ...workloads.options import model_config
from ...workloads.transformer import TransformerConfig
from ..app import NO
from ..options.typed_sizes import size_text
from .loaded import read
from .pipeline_options import (
    DEFAULTS,
    FLAGS,
    PipelineOptions,
    PipelineRequest,
    with_defaults,
)
from .remembered import source_of_pipeline
from .workload_source import Source

if TYPE_CHECKING:
    from ...algorithms.pipelines.plan_pipeline import PipelinePlan

WAYS = ("auto", "none", "layers", "stage")
_REMEMBERED = ("link", "link_latency_s", "collectives", "free_outputs", "waits_for_gradient")


def make_pipeline(source: Source, options: PipelineOptions) -> tuple[Pipeline, tuple[str, ...]]:
    """The pipeline, and the assumptions in words."""
    for flag, value in (
        ("--stages", options.num_devices),
        ("--micro-batches", options.num_micro_batches),
        ("--chunks", options.num_chunks),
    ):
        if value < 1:
            raise SchedsimError(f"{flag} {value} is not at least 1", hint="give a whole number")
    if options.link_latency_s and options.link is None:
        raise SchedsimError("--link-latency needs --link", hint="add --link 25GB/s")
    loaded = read(source)
    chain = loaded.workload
    if not isinstance(chain, Chain):
        raise UnsupportedError(
            f"{chain.name} is a graph, and a pipeline takes a chain",
            hint="leave --granularity op out",
        )
    more: dict[str, Any] = {}
    if options.link is not None:
        more["link"] = parse_link(options.link, options.link_latency_s)
    more |= _of_formula(source, options, chain)
    pipeline = pipelines.make_pipeline(
        chain,
        options.num_devices,
        options.num_micro_batches,
        num_chunks=options.num_chunks,
        cuts=_cuts(options, chain),
        free_outputs=options.free_outputs,
        waits_for_gradient=options.waits_for_gradient,
        split_backward=options.order == "zero-bubble",
        **more,
    )
    chunks = f" of {options.num_chunks} stages each" if options.num_chunks > 1 else ""
    link = f"messages over {pipeline.link}" if pipeline.link else "messages take no time"
    line = (
        f"pipeline: {options.num_devices} devices{chunks}, {options.num_micro_batches} "
        f"micro-batches, {options.order}, {link}"
    )
    if options.collectives:
        line += f", collectives over {parse_link(options.collectives)}"
    return pipeline, (*loaded.assumptions, line)


def _of_formula(source: Source, options: PipelineOptions, chain: Chain) -> dict[str, Any]:
    """State of each layer, collectives and split backwards, for a workload given by formula."""
    given = source.formula()
    found: dict[str, Any] = {}
    modelled = given is not None and given.synthetic is None
    if given is not None and modelled:
        if given.static == "auto":
            found["layer_static_bytes"] = from_formula.layer_state_bytes(given)
        if options.order == "zero-bubble" and given.times_path is None:
            record, roofline = from_formula.model_record(given), from_formula.roofline_of(given)
            found["weight_gradients"] = from_formula.weight_gradients(record, roofline)
    if options.collectives is not None:
        config = model_config(given) if given is not None and modelled else None
        if not isinstance(config, TransformerConfig):
            raise SchedsimError(
                "--collectives needs a transformer of known sizes", hint="add --preset or --layers"
            )
        blocks = given is not None and given.granularity == "block"
        link = parse_link(options.collectives)
        found["collectives"] = from_formula.layer_collectives(config, link, blocks=blocks)
    return found


def _cuts(options: PipelineOptions, chain: Chain) -> tuple[int, ...] | None:
    """Cuts from the numbers of layers by stage; ``None`` for an even partition."""
    if options.partition in ("even", "auto"):
        return None
    try:
        layers = [int(word) for word in options.partition.split(",")]
    except ValueError:
        raise SchedsimError(
            f"--partition {options.partition!r} is neither even, nor auto, nor layers per stage",
            hint="write --partition 12,12,11,13",
        ) from None
    if sum(layers) != chain.num_stages or min(layers) < 1:
        raise SchedsimError(
            f"--partition {options.partition} has {sum(layers)} layers of {chain.num_stages}",
            hint="one number per stage, 1 or more, which add up to all layers",
        )
    if len(layers) != options.num_devices * options.num_chunks:
        raise SchedsimError(
            f"--partition {options.partition} has {len(layers)} stages instead of "
            f"{options.num_devices * options.num_chunks}",
            hint="one number for each stage of each device",
        )
    return tuple(sum(layers[:v]) for v in range(len(layers) + 1))


def plan_pipeline(
    pipeline: Pipeline, options: PipelineOptions, budget: int | str | None
) -> PipelinePlan:
    """The plan that the options ask for."""
    # Imported late: pipeline planners load numba, which --help does not need.
    from ...algorithms.pipelines.fixed_recomputation import fixed_recomputation

    budget_bytes = None
    if budget is not None:

        def most() -> int:
            """The largest peak of a device if nothing is recomputed."""
            plain = fixed_recomputation(pipeline, None, order=options.order, recompute="none")
            assert plain.run is not None
            return plain.run.peak_bytes

        budget_bytes = budget if isinstance(budget, int) else parse_budget(budget, most)
    way = options.recompute or ("auto" if budget_bytes is not None else "none")
    if way not in WAYS:
        raise SchedsimError(f"--recompute {way!r} is unknown", hint=f"one of {', '.join(WAYS)}")
    if way == "auto":
        if budget_bytes is None:
            raise SchedsimError("--recompute auto needs --mem", hint="add --mem 80GB")
        partition: Any = "auto" if options.partition == "auto" else "given"
        planner = get_planner(kind="pipeline").load()
        found: PipelinePlan = planner(
            pipeline, budget_bytes, order=options.order, partition=partition
        )
        return found
    if options.partition == "auto":
        raise SchedsimError(
            f"--partition auto does not go with --recompute {way}", hint="use --recompute auto"
        )
    return fixed_recomputation(pipeline, budget_bytes, order=options.order, recompute=way)


@dataclass(frozen=True)
class MadePipeline:
    """A plan of a pipeline, made or replayed, and what was assumed.

    Attributes
    ----------
    source, options
        The workload, and all options, including those that a replayed plan remembers.
    problems
        Numbers of a replayed plan that differ from the replay.
    """

    plan: PipelinePlan
    lines: tuple[str, ...]
    source: Source
    options: PipelineOptions
    problems: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """The content of a ``schedsim.pipeline-plan/1`` file, with the options of the pipeline."""
        given = {name: getattr(self.options, name) for name in _REMEMBERED}
        return {
            **self.plan.to_dict(),
            "source": source_to_dict(self.source.origin),
            "given": {name: value for name, value in given.items() if value not in (None, False)},
        }

    def check(self) -> None:
        """Refuse a plan whose numbers differ from the replay.

        Raises
        ------
        InvalidScheduleError
            A number differs.
        """
        if self.problems:
            raise InvalidScheduleError(
                "; ".join(self.problems),
                rule="claims",
                run_index=None,
                op_name="",
                hint="is it the plan's workload, and its link?",
            )


def planned(request: PipelineRequest) -> MadePipeline:
    """The plan that the command line asks for: made, or with ``--replay`` simulated again."""
    if request.replay is not None:
        return _replay(request, request.replay)
    options = request.options()
    pipeline, lines = make_pipeline(request.source, options)
    found = plan_pipeline(pipeline, options, request.budget)
    return MadePipeline(found, lines, request.source, options)


def _replay(request: PipelineRequest, file: str) -> MadePipeline:
    from ...algorithms.pipelines.fixed_recomputation import replayed

    saved = read_pipeline_plan(file)
    if request.budget is not None or "recompute" in request.given:
        raise SchedsimError(
            "--replay does not go with --mem or --recompute", hint="the plan holds both"
        )
    layers = [b - a for a, b in pairwise(saved.cuts)]
    said = {
        **{name: value for name, value in saved.given.items() if name in _REMEMBERED},
        "num_devices": saved.num_devices,
        "num_micro_batches": saved.num_micro_batches,
        "order": saved.order_name,
        "num_chunks": max(1, len(layers) // saved.num_devices),
        "partition": ",".join(map(str, layers)),
    }
    for name, value in request.given.items():
        known = said.get(name, DEFAULTS.get(name))
        if value != known and (name in said or saved.source is not None):
            flag = FLAGS[name]
            shown = flag if value is True else f"{flag} {value}"
            raise SchedsimError(
                f"{shown}, but the plan is for {'none' if known in (None, False) else known}",
                hint=f"leave {flag} out: the plan remembers its own",
            )
    options = with_defaults({**said, **request.given})
    source = source_of_pipeline(saved.source, request.source, file)
    pipeline, lines = make_pipeline(source, options)
    found = replayed(pipeline, saved)
    assert found.run is not None
    problems = []
    if found.run.peak_bytes != saved.peak_bytes:
        problems.append(f"the plan says peak {saved.peak_bytes}, the replay {found.run.peak_bytes}")
    seconds = found.run.makespan_s
    if abs(seconds - saved.makespan_s) > 1e-9 * seconds:
        problems.append(f"the plan says step time {saved.makespan_s} s, the replay {seconds} s")
    return MadePipeline(found, lines, source, options, tuple(problems))


def explain_infeasible(found: PipelinePlan) -> int:
    """Say on stderr what would fit, and return the exit code."""
    assert found.budget_bytes is not None
    least = found.min_feasible_bytes
    budget = format_bytes(found.budget_bytes)
    click.echo(f"error: {found.pipeline.name} does not fit in {budget} per device", err=True)
    click.echo(
        f"hint: the least found to fit is {format_bytes(least)}: --mem {size_text(least)}"
        + ("" if found.run is None else "; --recompute auto may need less"),
        err=True,
    )
    return NO
