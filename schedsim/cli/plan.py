"""``schedsim plan``: a schedule within a budget, the largest size that fits, ways to save
memory."""

from __future__ import annotations

from typing import Any

import click

from .given.workload_options import workload_options
from .given.workload_source import Source
from .help import GroupedCommand
from .options import complete
from .options.allocator_options import allocator_options
from .options.files import check_writable, json_option, output_option
from .options.level_options import level_option
from .options.limits import budget_option
from .options.link import link_option
from .options.rule_options import rule_options
from .options.typed_sizes import GapType
from .planning.maximum import show_maximum
from .planning.one import plan_one
from .planning.request import DEFAULT_PLANNER, read_request
from .planning.ways import plan_ways


@click.command(
    "plan",
    cls=GroupedCommand,
    short_help="A schedule within a memory budget, and what is proven about it.",
)
@budget_option(required=True)
@click.option(
    "--planner",
    default=DEFAULT_PLANNER,
    show_default=True,
    shell_complete=complete.planner,
    help="See `schedsim planners`.",
)
@click.option("--gap", type=GapType(), help="Stop at this gap to the proven bound: 0.01, or 1%.")
@click.option("--time-limit", "time_limit_s", type=float, help="Seconds that a search may take.")
@click.option(
    "--effort", type=float, help="Work that a search may do; gives the same plan every time [20]."
)
@click.option("--slots", "num_slots", type=int, help="Memory slots (rotor) or states (revolve).")
@click.option(
    "--order",
    type=click.Choice(["fixed", "free"]),
    help="Order of first runs in a graph: that of the file (fixed), or any (free).",
)
@rule_options
@link_option
@level_option
@click.option(
    "--maximize",
    type=click.Choice(["batch", "seq", "layers"]),
    help="Find the largest value that fits, and the one that does the most work per second.",
)
@click.option(
    "--search-seed", "search_seed", type=int, help="Seed of the planner's random choices."
)
@allocator_options
@click.option(
    "--accumulate",
    metavar="N|auto",
    help="Split the step into N micro-batches; auto takes the fastest number that fits.",
)
@click.option(
    "--chunk",
    metavar="auto|head=N,mlp=N",
    help="Compute the language-model head and feed-forward layers in chunks of the tokens.",
)
@click.option(
    "--ways", "price_all", is_flag=True, help="Show the price of every way to need less memory."
)
@click.option(
    "--allow",
    metavar="KINDS",
    help="Kinds of variants that may be chosen: quantize, precision, approx, share.",
)
@click.option(
    "--certificate",
    metavar="FILE",
    callback=check_writable,
    shell_complete=complete.files,
    help="Write the plan with a proof of its bound, which a separate program can check.",
)
@json_option
@output_option("Write the plan to FILE.")
@workload_options
def command(source: Source, **given: Any) -> int:
    """Plan a schedule within a memory budget, and prove what can be proven.

    \b
    schedsim plan --layers 96 --mem 8GB
    schedsim plan chain.json --mem 24GiB --planner rotor -o plan.json
    schedsim plan --preset resnet-50 --mem 4GB --link pcie4 --host-mem 64GiB
    schedsim plan --layers 96 --mem 4GB --planner hrevolve --memory-level all@pcie4
    schedsim plan model:gpt2,batch=8 --mem 6GB --accumulate auto --chunk head=auto
    schedsim plan --preset gpt2-xl --mem 24GB --maximize batch
    schedsim plan --layers 96 --mem 40GB --keep 'layer4?' --recompute layer0
    schedsim plan graph.json --mem 11GB --certificate proof.json
    """
    request = read_request(source, given)
    if request.maximize is not None:
        return show_maximum(request, request.maximize)
    return plan_ways(request) if request.changes_step else plan_one(request)
