"""``schedsim plan``: a schedule within a budget."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ..allocators import EXACT
from ..api import get_planner, try_plan
from ..dataflow.variants import VARIANT_KINDS, check_allowed
from ..errors import PlannerLimitError, SchedsimError
from ..files.document import load, save, to_dict
from ..plans.budgets import sized_budget
from ..plans.offloading import Offloading
from ..plans.plan import Plan
from ..simulation.schedule import Schedule
from ..simulation.simulator import Simulation, simulate
from ..units import format_bytes, format_bytes_short, format_seconds
from . import complete
from .allocators import (
    allocations,
    allocator_options,
    allocator_words,
    describe,
    read_options,
)
from .app import INTERRUPTED, NO, YES
from .dry import on_device
from .help import GroupedCommand
from .inputs import (
    GapType,
    Loaded,
    Source,
    budget_option,
    json_option,
    need_torch,
    output_option,
    size_text,
    workload_options,
)
from .levels import level_facts, level_option, level_words, take_levels
from .offloading import copy_facts, link_option, link_words, take_link
from .show import percent, print_facts, print_json, working

DEFAULT_PLANNER = get_planner().name
_FLAGS = {
    "time_limit_s": "--time-limit",
    "effort": "--effort",
    "num_slots": "--slots",
    "gap": "--gap",
    "order": "--order",
    "search_seed": "--search-seed",
    "allow": "--allow",
}


@click.command(
    "plan",
    cls=GroupedCommand,
    short_help="A schedule within a memory budget, and what is proven of it.",
)
@budget_option(required=True)
@click.option(
    "--planner",
    default=DEFAULT_PLANNER,
    show_default=True,
    shell_complete=complete.planner,
    help="See `schedsim planners`.",
)
@click.option("--gap", type=GapType(), help="Gap to the proven bound to stop at: 0.01, or 1%.")
@click.option("--time-limit", "time_limit_s", type=float, help="Seconds to plan for.")
@click.option("--effort", type=float, help="Work to plan for: the same plan every time [20].")
@click.option("--slots", "num_slots", type=int, help="Memory slots (rotor) or states (revolve).")
@click.option(
    "--order",
    type=click.Choice(["fixed", "free"]),
    help="Of first runs in a graph: the file's, or any.",
)
@link_option
@level_option
@click.option(
    "--maximize",
    type=click.Choice(["batch", "seq", "layers"]),
    help="Find the largest that fits, and the one of most work a second.",
)
@click.option("--search-seed", "search_seed", type=int, help="Of the planner's random choices.")
@allocator_options
@click.option(
    "--accumulate",
    metavar="N|auto",
    help="Of a model: micro-batches of a step, or the quickest number that fits.",
)
@click.option(
    "--chunk",
    metavar="auto|head=N,mlp=N",
    help="Of a model: language-model head and feed-forward layers in chunks of the tokens.",
)
@click.option("--ways", "price_all", is_flag=True, help="Of a model: price all ways to spend less.")
@click.option(
    "--allow",
    metavar="KINDS",
    help="Variants that may be chosen: quantize, precision, approx, share; several by commas.",
)
@json_option
@output_option("Write the plan to FILE.")
@workload_options
def command(
    source: Source,
    budget: int | str,
    planner: str,
    accumulate: str | None,
    chunk: str | None,
    price_all: bool,
    allow: str | None,
    allocator: str | None,
    alloc_conf: str | None,
    as_json: bool,
    output: str | None,
    maximize: str | None,
    **more: Any,
) -> int:
    """Plan a schedule within a memory budget, and prove what can be proven.

    \b
    schedsim plan --layers 96 --mem 8GB
    schedsim plan chain.json --mem 24GiB --planner rotor -o plan.json
    schedsim plan --preset resnet-50 --mem 4GB --link pcie4 --host-mem 64GiB
    schedsim plan --layers 96 --mem 4GB --planner hrevolve --memory-level all@pcie4
    schedsim plan model:gpt2,batch=8 --mem 6GB --accumulate auto --chunk head=auto
    schedsim plan --preset gpt2-xl --mem 24GB --maximize batch
    """
    more["allow"] = check_allowed(allow) if allow is not None else None
    source = replace(source, allow=more["allow"] or ())
    link, texts = take_link(more), {"memory_levels": more.pop("memory_levels")}
    options = _planner_options(planner, more, link)
    memory: dict[str, Any] = {
        "allocator": allocator or EXACT,
        "allocator_options": read_options(allocator, alloc_conf),
    }
    if maximize is not None:
        from .maximize import show_maximum

        return show_maximum(
            source, sized_budget(budget), planner, options, maximize, as_json, output
        )
    if accumulate is not None or chunk is not None or price_all:
        given = read_accumulate(accumulate), read_chunk(chunk), price_all
        own = {name: value for name, value in options.items() if name not in link}
        return _plan_ways(source, budget, planner, own, link, given, as_json, output)
    loaded = source.read(movable=bool(link))
    levels = take_levels(texts, planner, loaded.workload)
    options |= levels
    budget_bytes = loaded.budget_bytes(budget)
    with working(f"planning with {planner}"):
        # Before planning, so that loading the simulator does not count as planning time.
        everything = simulate(loaded.workload, Schedule.store_all(loaded.workload))
        plan = try_plan(loaded.workload, budget_bytes, planner, **memory, **options)
    plan = replace(plan, workload=replace(plan.workload, source=source.origin))
    if loaded.origin:
        plan = replace(plan, setting=replace(plan.setting, step=loaded.origin))
    if output is not None:
        _keep(plan, output)
    if as_json:
        for line in loaded.assumptions:
            click.echo(line, err=True)
        print_json(to_dict(plan))
    else:
        for line in loaded.assumptions:
            click.echo(line)
        click.echo()
    if not plan.feasible:
        _explain_infeasible(source, loaded, plan, planner, {**link, **levels, **memory})
        return NO
    if not as_json:
        _show(loaded, plan, everything)
        _next_steps(source, plan, planner, options, output)
    return INTERRUPTED if plan.search.interrupted else YES


def _keep(plan: Plan, path: str) -> None:
    """Write `plan` to the file at `path`, but one without a schedule over no other file."""
    if not plan.feasible and Path(path).is_file() and not _holds_infeasible(path):
        click.echo(f"note: {path} is kept as it was, as this plan has no schedule", err=True)
        return
    save(plan, path)


def _holds_infeasible(path: str) -> bool:
    try:
        old = load(path)
    except (SchedsimError, OSError):
        return False
    return isinstance(old, Plan) and not old.feasible


def read_accumulate(text: str | None) -> int | str | None:
    """``--accumulate`` as a number or ``"auto"``."""
    if text is None or text == "auto":
        return text
    if text.isdigit() and int(text):
        return int(text)
    raise SchedsimError(
        f"--accumulate {text} is not understood", hint="auto, or a number of micro-batches"
    )


def read_chunk(text: str | None) -> dict[str, int | str] | str | None:
    """``--chunk`` as `schedsim.rematerialize` takes it."""
    if text is None or text == "auto":
        return text
    found: dict[str, int | str] = {}
    for item in text.split(","):
        piece, _, num = item.partition("=")
        if piece not in ("head", "mlp") or not (num == "auto" or (num.isdigit() and int(num))):
            raise SchedsimError(
                f"--chunk {text} is not understood", hint="auto, or head=8,mlp=4, or head=auto"
            )
        found[piece] = num if num == "auto" else int(num)
    return found


def _plan_ways(
    source: Source,
    budget: int | str,
    planner: str,
    options: dict[str, Any],
    link: dict[str, Any],
    given: tuple[int | str | None, Any, bool],
    as_json: bool,
    output: str | None,
) -> int:
    """A model planned by other ways than recomputation, or with their prices."""
    accumulate, chunk, price_all = given
    if not source.is_model or len(source.files) != 1:
        raise SchedsimError(
            "--accumulate, --chunk and --ways are of a model",
            hint="as in schedsim plan model:gpt2,layers=4 --mem 2GB --accumulate auto",
        )
    source.formula()  # refuses the options of formulas
    on_device(source.options["device"])
    need_torch()
    from ..validation.ways.commands import plan_target

    offload = None
    if link:
        over = Offloading.over(link["link"], latency_s=link.get("host_latency_s"))
        offload = (over.d2h, over.h2d)
    with working("capturing and planning each way"):
        outcome = plan_target(
            source.files[0],
            budget,
            level=source.level,
            device=source.options["device"],
            planner=planner,
            options=options,
            chunk=chunk,
            accumulate=accumulate,
            offload=offload,
            host_bytes=link.get("host_bytes"),
            price_all=price_all,
        )
    if output is not None:
        save(outcome.plan, output)
    loaded = Loaded(outcome.workload, outcome.lines, None, outcome.workload)
    for line in loaded.assumptions:
        click.echo(line, err=as_json)
    if as_json:
        print_json({**to_dict(outcome.plan), "ways": [way.to_dict() for way in outcome.ways]})
    else:
        click.echo()
        everything = simulate(loaded.workload, Schedule.store_all(loaded.workload))
        _show(loaded, outcome.plan, everything)
        if output is not None:
            call = f"schedsim.apply(model, {output!r}, inputs, loss)"
            click.echo(f"\nnext\n  {call}  # in Python: train by it")
    return YES


def _planner_options(planner: str, more: dict[str, Any], link: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in more.items() if value is not None}
    taken = set(get_planner(planner).options())
    if link and "link" not in taken:
        raise SchedsimError(
            f"planner {planner!r} does not take --link",
            hint="leave --planner out, or see `schedsim planners` for those that offload",
        )
    if not link and get_planner(planner).needs_link:
        raise SchedsimError(f"planner {planner!r} needs --link", hint="--link pcie4, or SIZE/s")
    if "seed" in taken:
        taken.add("search_seed")
    for name, value in given.items():
        if name not in taken:
            able = [_FLAGS[n] for n in _FLAGS if n in taken]
            raise SchedsimError(
                f"planner {planner!r} does not take {_FLAGS[name]}",
                hint=f"it takes {', '.join(able)}" if able else f"leave {_FLAGS[name]} out",
            )
        least = 1 if name == "num_slots" else 0
        if name not in ("order", "allow") and not value >= least:  # so that nan is refused too
            raise SchedsimError(
                f"{_FLAGS[name]} {value} is not at least {least}", hint="give a number that is"
            )
    if "search_seed" in given:  # --seed is that of a synthetic workload
        given["seed"] = given.pop("search_seed")
    return {**given, **link}


def _show(loaded: Loaded, plan: Plan, everything: Simulation) -> None:
    assert plan.schedule is not None
    assert plan.overhead is not None
    simulation = plan.simulate(loaded.given)
    chosen = plan.found_by
    facts = [
        ("plan", f"{plan.status}, by {chosen} in {format_seconds(plan.planning_s)}"),
        ("budget", format_bytes(plan.budget_bytes)),
        (
            "peak",
            f"{format_bytes(simulation.peak_bytes)} at {loaded.label(simulation.peak_op)}, "
            f"run {simulation.peak_run} of {simulation.num_runs}",
        ),
    ]
    for name, size in simulation.by_category().items():
        if size:
            facts.append((f"  {name}", f"{format_bytes_short(size):>10}"))
    allocator = plan.setting.allocator
    if allocator is not None:
        found = allocations(simulation, allocator.name, plan.budget_bytes, dict(allocator.options))
        for pool, allocation in found.items():
            facts += describe(pool, allocation)
        facts.append(("planned for", format_bytes(allocator.inner_budget_bytes or 0)))
    facts += [
        ("store-all peak", _compared(everything.peak_bytes, simulation.peak_bytes)),
        (
            "step time",
            f"{format_seconds(simulation.makespan_s)}, {percent(plan.overhead)} over store-all "
            f"{format_seconds(plan.store_all_s)}",
        ),
        (
            "lower bound",
            f"{format_seconds(plan.lower_bound_s)} over {plan.bound_scope}, "
            f"gap {(plan.gap or 0):.2%}".replace("%", " %"),
        ),
        (
            "recomputed",
            f"{simulation.num_recomputed} of {simulation.num_runs - simulation.num_copies} op runs",
        ),
    ]
    facts += _variant_facts(plan)
    if plan.setting.link is not None:
        facts += copy_facts(simulation, plan.setting.link)
    facts += level_facts(plan, simulation)
    print_facts(facts)


def _variant_facts(plan: Plan) -> list[tuple[str, str]]:
    """Which variants are used, how often, and what they do to the numbers of training."""
    if not plan.variants:
        return []
    counts: dict[str, list[str]] = {}
    for choice in plan.variants:
        # One of a graph is named by what it does and to which tensor.
        name = choice.variant.name if choice.stage else choice.variant.name.split()[0]
        counts.setdefault(name, []).append(choice.stage or choice.variant.name.split()[-1])
    facts: list[tuple[str, str]] = []
    for name, where in counts.items():
        some = where[0] if len(where) == 1 else f"{where[0]} .. {where[-1]}"
        facts.append(("variants" if not facts else "", f"{name}: {len(where)} times, {some}"))
    kinds = dict.fromkeys(k for choice in plan.variants for k in choice.variant.kind.split("+"))
    return facts + [("", f"{kind}: {VARIANT_KINDS[kind]}") for kind in kinds]


def _compared(everything: int, peak: int) -> str:
    """The store-all peak, and how much of it the plan needs."""
    share = f"{peak / everything:.1%}".replace("%", " %") if everything else "0 %"
    return f"{format_bytes(everything)}, of which the plan needs {share}"


def _next_steps(
    source: Source, plan: Plan, planner: str, options: dict[str, Any], output: str | None
) -> None:
    arguments, budget = source.arguments(), size_text(plan.budget_bytes)
    file = shlex.quote(output or "plan.json")
    steps = []
    if output is None:
        same = [] if planner == DEFAULT_PLANNER else ["--planner", planner]
        for name, value in options.items():
            if name not in _FLAGS and name != "seed":
                continue  # of the link, or the levels
            name = "search_seed" if name == "seed" else name
            text = ",".join(value) if name == "allow" else str(value)
            same += [_FLAGS[name], f"{value:g}" if isinstance(value, int | float) else text]
        same = [*link_words(options), *level_words(options), *same, *allocator_words(plan)]
        words = ["schedsim plan", arguments, "--mem", budget, *same, "-o", file]
        steps.append((" ".join(words), "keep it"))
    steps += [
        (f"schedsim simulate {file}", "replay it"),
        (f"schedsim plot timeline {file} -o timeline.svg", "see its memory"),
        *(
            []
            if link_words(options) or level_words(options)
            else [(f"schedsim explain {file}", "why its peak is there")]
        ),
        (
            " ".join(["schedsim compare", arguments, "--mem", budget, *link_words(options)]),
            "other planners",
        ),
    ]
    width = max(len(step) for step, _ in steps)
    click.echo("\nnext")
    for step, why in steps:
        click.echo(f"  {step:<{width}}  # {why}")


def _explain_infeasible(
    source: Source, loaded: Loaded, plan: Plan, planner: str, more: dict[str, Any]
) -> None:
    budget, by = format_bytes(plan.budget_bytes), planner
    if more["allocator"] != EXACT:
        by = f"{planner} and the {more['allocator']} allocator"
    click.echo(f"error: {loaded.workload.name} does not fit in {budget} with {by}", err=True)
    if plan.min_feasible_bytes is not None:
        least = plan.least.sentence(loaded.label(plan.binding_op) if plan.binding_op else "")
        # The exact number, as three digits may be less than what is needed.
        click.echo(f"hint: {least}: --mem {size_text(plan.min_feasible_bytes)}", err=True)
    options = source.formula()
    if options is None:
        return
    from ..workloads import build_workload, variants

    rows = []
    quick = {**more, "time_limit_s": 1.0} if "link" in more else more
    with working("looking at what would lower it"):
        for label, changed in variants(options):
            try:
                changed_workload = build_workload(changed).workload
                other = try_plan(changed_workload, plan.budget_bytes, planner, **quick)
            except (PlannerLimitError, SchedsimError):
                continue
            least_bytes = other.min_feasible_bytes
            if other.peak_bytes is not None and other.overhead is not None:
                rows.append((label, "fits", f"{percent(other.overhead)} over its store-all"))
            elif least_bytes is not None and least_bytes < (plan.min_feasible_bytes or 0):
                rows.append((label, "", f"least {format_bytes(least_bytes)}"))
    if rows:
        click.echo("\nwhat would lower it", err=True)
        width = max(len(label) for label, _, _ in rows)
        for label, fits, says in rows:
            click.echo(f"  {label:<{width}}  {fits + ', ' if fits else ''}{says}", err=True)
