"""A chain of four layers and a graph of two, for tests of single targets of `export`."""

from __future__ import annotations

from functools import cache

import schedsim
from schedsim.export import export
from schedsim.workloads import WorkloadOptions, build_workload

CHAIN = build_workload(WorkloadOptions(preset="gpt2", layers=4)).workload
OPS = build_workload(WorkloadOptions(preset="gpt2", layers=2, granularity="op")).workload


@cache
def tight(target):
    """The chain's plan of the least memory, exported."""
    least = schedsim.pareto(CHAIN).points[0].budget_bytes
    return export(CHAIN, schedsim.plan(CHAIN, least), target)


@cache
def loose(target, of_ops=False):
    """A plan that recomputes nothing, exported."""
    workload = OPS if of_ops else CHAIN
    return export(workload, schedsim.plan(workload, "100%", "store_all"), target)


def executed(text):
    """The names that generated code defines."""
    names = {}
    exec(compile(text, "generated", "exec"), names)
    return names
