"""The pipeline that the options mean, and its plan: made, or replayed from a file."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click

from ...api import get_planner
from ...errors import SchedsimError, UnsupportedError
from ...plans.budgets import parse_budget
from ...units import format_bytes
from ..app import NO
from ..options.sizes import size_text
from .loaded import read
from .pipeline_options import PipelineOptions
from .source import Source

if TYPE_CHECKING:
    from ...algorithms.pipelines.plan_pipeline import PipelinePlan
    from ...dataflow.chain import Chain
    from ...pipelines import Pipeline


WAYS = ("auto", "none", "layers", "stage")


def make_pipeline(source: Source, options: PipelineOptions) -> tuple[Pipeline, tuple[str, ...]]:
    """The pipeline, and in words what was assumed."""
    from ... import pipelines
    from ...dataflow.chain import Chain
    from ...plans.links import parse_link

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
    """State of each layer, collectives and split backwards, where a formula says them."""
    from ...pipelines import formula
    from ...plans.links import parse_link
    from ...workloads.options import model_config
    from ...workloads.transformer import TransformerConfig

    given = source.formula()
    found: dict[str, Any] = {}
    modelled = given is not None and given.synthetic is None
    if given is not None and modelled:
        if given.static == "auto":
            found["layer_static_bytes"] = formula.layer_state_bytes(given)
        if options.order == "zero-bubble" and given.times_path is None:
            record, roofline = formula.model_record(given), formula.roofline_of(given)
            found["weight_gradients"] = formula.weight_gradients(record, roofline)
    if options.collectives is not None:
        config = model_config(given) if given is not None and modelled else None
        if not isinstance(config, TransformerConfig):
            raise SchedsimError(
                "--collectives needs a transformer of known sizes", hint="add --preset or --layers"
            )
        blocks = given is not None and given.granularity == "block"
        link = parse_link(options.collectives)
        found["collectives"] = formula.layer_collectives(config, link, blocks=blocks)
    return found


def _cuts(options: PipelineOptions, chain: Chain) -> tuple[int, ...] | None:
    """Cuts from layers a stage; ``None`` for an even partition."""
    if options.partition in ("even", "auto"):
        return None
    try:
        layers = [int(word) for word in options.partition.split(",")]
    except ValueError:
        raise SchedsimError(
            f"--partition {options.partition!r} is neither even, auto nor layers a stage",
            hint="write --partition 12,12,11,13",
        ) from None
    if sum(layers) != chain.num_stages or min(layers) < 1:
        raise SchedsimError(
            f"--partition {options.partition} are {sum(layers)} layers of {chain.num_stages}",
            hint="one number a stage, 1 or more, all layers together",
        )
    if len(layers) != options.num_devices * options.num_chunks:
        raise SchedsimError(
            f"--partition {options.partition} are {len(layers)} stages, not "
            f"{options.num_devices * options.num_chunks}",
            hint="one number for each stage of each device",
        )
    return tuple(sum(layers[:v]) for v in range(len(layers) + 1))


def plan_pipeline(
    pipeline: Pipeline, options: PipelineOptions, budget: int | str | None
) -> PipelinePlan:
    """The plan that the options ask for."""
    from ...algorithms.pipelines import fixed_recomputation as fixed

    budget_bytes = None
    if budget is not None:

        def most() -> int:
            """What a device takes where nothing is recomputed, at the most."""
            plain = fixed.fixed_recomputation(pipeline, None, order=options.order, way="none")
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
    return fixed.fixed_recomputation(pipeline, budget_bytes, order=options.order, way=way)


def replay(
    source: Source, options: PipelineOptions, budget: int | str | None
) -> tuple[PipelinePlan, tuple[str, ...], list[str]]:
    """The plan of ``--replay`` simulated again, what was assumed, and what is not as it says."""
    from ...algorithms.pipelines.fixed_recomputation import replayed
    from ...pipelines.plan_file import read_pipeline_plan

    assert options.replay is not None
    saved = read_pipeline_plan(options.replay)
    for flag, given, said in (
        ("--stages", options.num_devices, saved.num_devices),
        ("--micro-batches", options.num_micro_batches, saved.num_micro_batches),
    ):
        if given != said:
            raise SchedsimError(
                f"{flag} {given}, but the plan is for {said}", hint=f"{flag} {said}"
            )
    if budget is not None or options.recompute is not None:
        raise SchedsimError(
            "--replay does not go with --mem or --recompute", hint="the plan has chosen already"
        )
    layers = [b - a for a, b in pairwise(saved.cuts)]
    options = replace(
        options,
        order=saved.order_name,
        num_chunks=max(1, len(layers) // saved.num_devices),
        partition=",".join(map(str, layers)),
    )
    pipeline, lines = make_pipeline(source, options)
    found = replayed(pipeline, saved)
    assert found.run is not None
    problems = []
    if found.run.peak_bytes != saved.peak_bytes:
        problems.append(f"the plan says peak {saved.peak_bytes}, the replay {found.run.peak_bytes}")
    seconds = found.run.makespan_s
    if abs(seconds - saved.makespan_s) > 1e-9 * seconds:
        problems.append(f"the plan says step time {saved.makespan_s} s, the replay {seconds} s")
    return found, lines, problems


def explain_infeasible(found: PipelinePlan) -> int:
    """Say on stderr what would fit; the exit code."""
    assert found.budget_bytes is not None
    least = found.min_feasible_bytes
    budget = format_bytes(found.budget_bytes)
    click.echo(f"error: {found.pipeline.name} does not fit in {budget} a device", err=True)
    click.echo(
        f"hint: the least found to fit is {format_bytes(least)}: --mem {size_text(least)}"
        + ("" if found.run is None else "; --recompute auto may need less"),
        err=True,
    )
    return NO
