"""The layout of ``--help``: options in groups, the command's own options first."""

from __future__ import annotations

import click

# Title -> parameters, in the order in which groups are shown. A parameter in no group is the
# command's own.
GROUPS: dict[str, tuple[str, ...]] = {
    "Budget and planner": (
        *("budget", "planner", "planners", "gap", "time_limit_s", "effort", "num_slots", "order"),
        *("search_seed", "allow", "keep", "recompute_patterns", "maximize", "num_points"),
    ),
    "Schedule": ("schedule_file", "capacities", "against"),
    "Links and offloading": ("link", "host_bytes", "host_latency_s", "memory_levels"),
    "Allocator": ("allocator", "alloc_conf", "confs"),
    "Pipeline": (
        *("num_devices", "num_micro_batches", "num_chunks", "recompute", "partition"),
        *("link_latency_s", "collectives", "free_outputs", "waits_for_gradient", "replay"),
    ),
    "Real models": ("level", "accumulate", "chunk", "price_all", "meter", "rounds", "again"),
    "Workload by formula": (
        *("preset", "layers", "hidden", "heads", "seq", "batch", "dtype", "attention"),
        *("granularity", "head", "synthetic", "seed"),
    ),
    "Parallelism and model state": (
        *("tensor_parallel", "sequence_parallel", "data_parallel", "zero_stage", "static"),
        "optimizer",
    ),
    "Cluster": (
        *("devices", "fsdp", "replicate", "tensor", "pipeline", "context", "expert"),
        *("whole_experts", "dispatcher", "hidden_exchange", "uneven", "schedule"),
        *("loss_chunks", "state", "compiled", "float8", "compiled_loss", "chunked_head"),
        *("reduce_bf16", "separate_head", "torch"),
        *(
            "fused_optimizer",
            "eager_attention",
            "regather",
            "whole_sequence",
            "overlap_tensor",
            "optimizer_in_backward",
        ),
        *("expandable", "search", "global_batch", "launch"),
    ),
    "Device and times": ("device", "efficiency", "flash", "network", "times_path"),
    "Output": ("output", "certificate", "as_json", "help"),
}

_OWN = "Options"


def group_of(name: str) -> str:
    """Title of the group that holds the parameter `name`."""
    return next((title for title, names in GROUPS.items() if name in names), _OWN)


class GroupedCommand(click.Command):
    """A command whose help has its options in `GROUPS`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each group that has options, the command's own first."""
        records = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                name = "help" if "--help" in param.opts else param.name or ""
                records[name] = record
        grouped = {
            _OWN: [record for name, record in records.items() if group_of(name) == _OWN],
            **{
                title: [records[name] for name in names if name in records]
                for title, names in GROUPS.items()
            },
        }
        for title, rows in grouped.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
