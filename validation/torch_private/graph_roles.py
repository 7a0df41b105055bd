"""What the nodes of a joint graph stand for: roles of inputs and outputs, passes, modules."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class Role(NamedTuple):
    """The role of a graph input or output: ``kind``, and its name or position in the model.

    Inputs: parameter, buffer, input, tangent, other. Outputs: output, mutation, gradient, other.
    """

    kind: str
    key: str | int
    of: str = ""


def placeholder_role(node: torch.fx.Node) -> Role:
    """The input that a placeholder of a joint graph stands for."""
    from torch._functorch._aot_autograd import descriptors as d

    desc = node.meta.get("desc")
    if isinstance(desc, d.ParamAOTInput):
        return Role("parameter", desc.target)
    if isinstance(desc, d.BufferAOTInput):
        return Role("buffer", desc.target)
    if isinstance(desc, d.PlainAOTInput):
        return Role("input", desc.idx)
    if isinstance(desc, d.TangentAOTInput) and isinstance(desc.output, d.PlainAOTOutput):
        return Role("tangent", desc.output.idx)
    return Role("other", repr(desc))


def output_roles(graph: torch.fx.Graph) -> list[tuple[Any, Role]]:
    """The outputs of a joint graph (a node, a number or ``None`` each) with what they are."""
    from torch._functorch._aot_autograd import descriptors as d

    node = next(node for node in graph.nodes if node.op == "output")
    found: list[tuple[Any, Role]] = []
    for value, desc in zip(node.args[0], node.meta["desc"], strict=True):
        role = Role("other", repr(desc))
        while isinstance(desc, d.SubclassGetAttrAOTOutput):  # the share of one that is spread
            desc = desc.base
        if isinstance(desc, d.PlainAOTOutput):
            role = Role("output", desc.idx)
        elif isinstance(desc, d.InputMutationAOTOutput):
            role = _of_input("mutation", desc.mutated_input)
        elif isinstance(desc, d.GradAOTOutput):
            role = _of_input("gradient", desc.grad_of)
        found.append((value, role))
    return found


def _of_input(kind: str, desc: Any) -> Role:
    from torch._functorch._aot_autograd import descriptors as d

    if isinstance(desc, d.ParamAOTInput):
        return Role(kind, desc.target, "parameter")
    if isinstance(desc, d.BufferAOTInput):
        return Role(kind, desc.target, "buffer")
    if isinstance(desc, d.PlainAOTInput):
        return Role(kind, desc.idx, "input")
    return Role(kind, repr(desc), "other")


def is_backward(node: torch.fx.Node) -> bool:
    """Whether a node of a joint graph was traced in the backward pass."""
    return bool(node.meta.get("partitioner_tag") == "is_backward")


def is_gradient_sum(node: torch.fx.Node) -> bool:
    """Whether the autograd engine made the node, to add up the gradients of one tensor."""
    return "Gradient addition" in (node.meta.get("stack_trace") or "")


def node_sequence_number(node: torch.fx.Node) -> int:
    """Number of the autograd node that a forward op belongs to, or that a backward op is of."""
    return int(node.meta.get("seq_nr", -1))


def module_path(node: torch.fx.Node) -> str | None:
    """Where Dynamo says the node comes from, like ``model.h.0.mlp``; ``None`` if it does not."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return None
    path = next(reversed(stack.values()))[0]
    return str(path) if isinstance(path, str) else None
