"""Joint graphs of forward and backward: exported, cut in two, and compiled by inductor."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from .dynamo_graphs import dynamo_graph
from .graph_roles import output_roles
from .kept_checks import checks_kept
from .quiet_traces import backward_as_it_runs, draws_kept, exporting


def export_joint(
    module: nn.Module, inputs: tuple[torch.Tensor, ...], mode: FakeTensorMode
) -> torch.fx.GraphModule:
    """Forward and backward of `module` on fake `inputs` as one functional graph."""
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

    with contextlib.ExitStack() as stack:
        stack.enter_context(exporting(mode))
        stack.enter_context(draws_kept())
        stack.enter_context(checks_kept())
        stack.enter_context(backward_as_it_runs())
        joint = aot_export_joint_with_descriptors(stack, module, inputs)
        graph_module: torch.fx.GraphModule = joint.graph_module
    return graph_module


class CutGraph(NamedTuple):
    """A joint graph cut in two, as torch.compile runs it.

    Attributes
    ----------
    module
        What the parameters and buffers in the roles are of.
    joint, forward, backward
        Nodes keep the names that they have in `joint`.
    num_outputs
        Of `forward`, before what it keeps for `backward`.
    """

    module: nn.Module
    joint: torch.fx.GraphModule
    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule
    num_outputs: int


def inductor_halves(
    module: nn.Module, inputs: tuple[torch.Tensor, ...], mode: FakeTensorMode
) -> CutGraph:
    """`module` on fake `inputs`, read by Dynamo, decomposed and cut as inductor has it cut."""
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    graph = dynamo_graph(module, inputs, mode)
    with contextlib.ExitStack() as stack:
        stack.enter_context(exporting(mode))
        stack.enter_context(checks_kept())
        table = select_decomp_table()
        exported = aot_export_joint_with_descriptors(stack, graph, inputs, decompositions=table)
        joint: torch.fx.GraphModule = exported.graph_module
        roles = [role for _, role in output_roles(joint.graph)]
        num_outputs = sum(role.kind in ("output", "mutation") for role in roles)
        whole = copy.deepcopy(joint.graph)  # the partitioner clears tags that say what is backward
        kept = torch.fx.GraphModule(joint, whole)
        forward, backward = min_cut_rematerialization_partition(
            joint, None, compiler="inductor", num_fwd_outputs=num_outputs
        )
    return CutGraph(graph, kept, forward, backward, num_outputs)


def inductor_compiled(
    function: Callable[..., Sequence[Any]], examples: Sequence[torch.Tensor], mode: FakeTensorMode
) -> Callable[[list[Any]], Sequence[Any]]:
    """`function`, of functional ops on flat tensors, compiled by inductor.

    It takes its arguments in one list, which it empties as it goes. Equal ops are not merged: what
    is computed twice stays so.
    """
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    with config.patch(fallback_random=True), mode, torch.no_grad():
        graph = make_fx(function, decomposition_table=select_decomp_table())(*examples)
        compiled: Any = compile_fx_inner(graph, list(examples))

    def run(arguments: list[Any]) -> Sequence[Any]:
        found: Sequence[Any] = compiled(arguments)
        return found

    return run
