"""A step as torch.compile splits it: the partitioner decides what its forward keeps."""

from __future__ import annotations

from typing import Any

import torch

from schedsim.errors import UnsupportedError

from ..capture.fronts import WAY_OUT, Traced
from ..capture.naming import Namer, short_op_name
from ..capture.skeleton import Skeleton
from ..torch_private.graph_roles import Role, is_backward, output_roles, placeholder_role
from ..torch_private.joint_graphs import CutGraph, inductor_halves
from ..torch_private.op_modes import OpOverload, schema_name
from .lifetimes import LifetimeTracker, hold_state


class _Named(torch.fx.Interpreter):
    """Runs a graph on fakes, frees each value after its last reader, and names the ops."""

    def __init__(
        self, graph_module: torch.fx.GraphModule, tracker: LifetimeTracker, names: dict[str, str]
    ) -> None:
        super().__init__(graph_module, garbage_collect_values=True)
        self.tracker, self.names = tracker, names

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run one node under its name."""
        self.tracker.op_name = self.names.get(n.name, n.name)
        return super().run_node(n)


def run_partitioned(skeleton: Skeleton, mode: Any, tracker: LifetimeTracker) -> int:
    """Run the two halves that inductor would compile; returns the moment at which backward begins.

    Raises
    ------
    UnsupportedError
        The step is no single graph, so that torch.compile would split it at its breaks.
    """
    try:
        halves = inductor_halves(skeleton.step, skeleton.tensors, mode)
    except Exception as error:  # the model's own code may raise anything in a trace
        line = " ".join(str(error).split())[:200]
        raise UnsupportedError(
            f"the compiled step is no single graph: {type(error).__name__}: {line}", hint=WAY_OUT
        ) from error
    forward_names, backward_names = _names(halves.joint)
    outputs = _Outputs(halves.forward, halves.num_outputs)
    with mode, tracker, torch.no_grad():
        hold_state(skeleton, tracker)
        forward = _Named(halves.forward, tracker, forward_names)
        made = forward.boxed_run(_arguments(halves, skeleton.tensors))
        kept = dict(zip(outputs.kept, made[halves.num_outputs :], strict=True))
        result = made[: halves.num_outputs]
        del made, forward
        end, tracker.in_backward = tracker.now(), True
        given = []
        for node in halves.backward.graph.find_nodes(op="placeholder"):
            tangent = node.name not in kept
            tracker.op_name = "grad.loss"
            given.append(torch.ones_like(node.meta["val"]) if tangent else kept.pop(node.name))
        del kept
        gradients = _Named(halves.backward, tracker, backward_names).boxed_run(given)
        roles = [role for _, role in output_roles(halves.joint.graph)]
        for role, gradient in zip(roles[halves.num_outputs :], gradients, strict=True):
            if isinstance(gradient, torch.Tensor) and role.kind == "gradient":
                life = tracker.life_of(gradient)
                life.name, life.held = f"{skeleton_name(skeleton, role)}.grad", "gradient"
        del result
    return end


class _Outputs:
    """The outputs of a forward half: the step's own outputs, then what the half keeps, by name."""

    def __init__(self, forward: torch.fx.GraphModule, num_outputs: int) -> None:
        node = next(iter(forward.graph.find_nodes(op="output")))
        self.kept = [one.name for one in node.args[0][num_outputs:]]


def _arguments(halves: CutGraph, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    module = halves.module
    own: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
    own.update(module.named_buffers(remove_duplicate=False))
    roles = {
        node.name: placeholder_role(node)
        for node in halves.joint.graph.find_nodes(op="placeholder")
    }
    found = []
    for node in halves.forward.graph.find_nodes(op="placeholder"):
        role = roles[node.name]
        found.append(inputs[int(role.key)] if role.kind == "input" else own[str(role.key)])
    return found


def skeleton_name(skeleton: Skeleton, role: Role) -> str:
    """The name in the model of the parameter or input that `role` is a gradient of."""
    if role.of != "parameter":
        return f"input{role.key}"
    key = str(role.key)
    return skeleton.canonical.get(key, key.removeprefix("model."))


def _names(joint: torch.fx.GraphModule) -> tuple[dict[str, str], dict[str, str]]:
    """Node -> name of its op, for nodes in the forward half and for nodes in the backward half."""
    namer = Namer(Traced(joint, (), "dynamo", False, {}))
    forward, backward = {}, {}
    behind: set[torch.fx.Node] = set()  # nodes after the loss: not every backward node is marked
    for node in joint.graph.nodes:
        is_tangent = node.op == "placeholder" and placeholder_role(node).kind == "tangent"
        if is_tangent or is_backward(node) or behind.intersection(node.all_input_nodes):
            behind.add(node)
        target = node.target
        if not isinstance(target, OpOverload):
            continue
        short = short_op_name(schema_name(target).partition("::")[2])
        path = namer.module(node)
        own = f"{path}.{short}" if path else short
        forward[node.name] = own
        prefix = "grad" if node in behind else "recompute"
        backward[node.name] = f"{prefix}.{own}"
    return forward, backward
