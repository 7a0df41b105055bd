"""Arguments and results of a joint graph that are no tensors, as the mesh of a ``DTensor``.

AOTAutograd takes a tensor that is spread over ranks apart: into this rank's share, and since torch
2.13 the mesh, an argument of its own, which comes back with each gradient and each output. No op
reads it. It is taken out of the graph here, and put in its places as the halves run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from schedsim.errors import UnsupportedError

Half = Callable[[list[Any]], list[Any]]


@dataclass(frozen=True)
class OpaquePlaces:
    """Where a joint graph had them.

    Attributes
    ----------
    places : tuple of int
        The place of each argument of Dynamo's graph among those of the joint graph; -1 for an
        opaque one.
    num_outputs : int
        Number of outputs of the forward half that stay.
    """

    places: tuple[int, ...]
    num_outputs: int
    _are_static_by_place: bool
    _of_forward: tuple[bool, ...]
    _of_backward: tuple[bool, ...]
    _outputs: tuple[tuple[int, Any], ...]
    _gradients: tuple[tuple[int, Any], ...]

    @classmethod
    def taken_out(cls, joint: torch.fx.GraphModule, num_outputs: int) -> OpaquePlaces:
        """The places in `joint`, which has no such arguments and results any more. O(nodes).

        Raises
        ------
        UnsupportedError
            An op reads one, or a tensor is made of several.
        """
        graph = joint.graph
        nodes = [node for node in graph.nodes if node.op == "placeholder"]
        found_in = ((node, _object_of(node, joint)) for node in graph.nodes)
        opaque = {node: it for node, it in found_in if it is not None}
        end = next(node for node in graph.nodes if node.op == "output")
        if any(user is not end for node in opaque for user in node.users):
            raise UnsupportedError("an op reads a mesh of ranks, which no plan goes into")
        given, tangents = _split(nodes)
        places = _places(given, opaque)
        values: list[Any] = list(end.args[0])
        meshes = [opaque.get(it) if isinstance(it, torch.fx.Node) else None for it in values]
        outputs = tuple((i, it) for i, it in enumerate(meshes[:num_outputs]) if it is not None)
        gradients = tuple(
            (i, meshes[num_outputs + i]) for i, node in enumerate(given) if node in opaque
        )
        found = cls(
            places,
            num_outputs - len(outputs),
            not any(_base(node)[1] for node in given),
            tuple(node in opaque for node in given),
            tuple(node in opaque for node in tangents),
            outputs,
            gradients,
        )
        if opaque:
            found._take_out(joint, end, list(opaque))
        return found

    def _take_out(
        self,
        joint: torch.fx.GraphModule,
        end: torch.fx.Node,
        opaque: Sequence[torch.fx.Node],
    ) -> None:
        values: Any = end.args[0]
        num_outputs = self.num_outputs + len(self._outputs)
        without = {i for i, _ in self._outputs}
        without |= {num_outputs + i for i, is_opaque in enumerate(self._of_forward) if is_opaque}
        kept = [i for i in range(len(values)) if i not in without]
        end.args = (tuple(values[i] for i in kept),)
        if "desc" in end.meta:
            end.meta["desc"] = [end.meta["desc"][i] for i in kept]
        for node in opaque:
            joint.graph.erase_node(node)

    def fixed(self, static: Iterable[int]) -> frozenset[int]:
        """Places of the arguments that stay where they are, of which AOTAutograd says `static`."""
        if self._are_static_by_place:
            return frozenset(static)
        return frozenset(self.places[i] for i in static if 0 <= i < len(self.places)) - {-1}

    def forward(self, half: Half) -> Half:
        """The forward `half` with the arguments and outputs that AOTAutograd knows."""
        if not any(self._of_forward):
            return half

        def run(arguments: list[Any]) -> list[Any]:
            kept = [it for it, out in zip(arguments, self._of_forward, strict=True) if not out]
            arguments.clear()
            found = half(kept)
            for i, it in self._outputs:
                found.insert(i, it)
            return found

        return run

    def backward(self, half: Half) -> Half:
        """The backward `half` with the gradients that AOTAutograd knows."""
        if not any(self._of_forward) and not any(self._of_backward):
            return half
        objects = dict(self._gradients)

        def run(arguments: list[Any]) -> list[Any]:
            at = len(arguments) - len(self._of_backward)
            given = itertools.compress(arguments[at:], [not out for out in self._of_backward])
            kept = [*arguments[:at], *given]
            del given
            arguments.clear()
            found = iter(half(kept))
            return [
                objects.get(i) if is_opaque else next(found)
                for i, is_opaque in enumerate(self._of_forward)
            ]

        return run


def _object_of(node: torch.fx.Node, joint: torch.fx.GraphModule) -> Any:
    """The mesh that a node stands for; ``None`` where it stands for anything else."""
    if node.op == "placeholder":
        found = node.meta.get("val")
    elif node.op == "get_attr" and "." not in str(node.target):
        found = getattr(joint, str(node.target))
    else:
        return None
    found = getattr(found, "real_obj", found)
    return found if type(found).__name__ == "DeviceMesh" else None


def _split(nodes: Sequence[torch.fx.Node]) -> tuple[list[torch.fx.Node], list[torch.fx.Node]]:
    """The arguments of the forward, and the gradients for the backward."""
    given = [node for node in nodes if "tangents" not in node.name]
    return given, [node for node in nodes if "tangents" in node.name]


def _base(node: torch.fx.Node) -> tuple[int, bool]:
    """The number of the argument of Dynamo's graph that a placeholder is of; whether it is a part.

    -1 where torch does not say.
    """
    from torch._functorch._aot_autograd import descriptors as d

    desc, is_part = node.meta.get("desc"), False
    while isinstance(desc, d.SubclassGetAttrAOTInput):
        desc, is_part = desc.base, True
    return (desc.idx if isinstance(desc, d.PlainAOTInput) else -1), is_part


def _places(given: Sequence[torch.fx.Node], opaque: dict[torch.fx.Node, Any]) -> tuple[int, ...]:
    kept = [node for node in given if node not in opaque]
    if len(kept) == len(given) and not any(_base(node)[1] for node in given):
        return tuple(range(len(given)))
    bases = [_base(node)[0] for node in kept]
    if -1 in bases or len(set(bases)) < len(bases):
        raise UnsupportedError("an input of a graph is a tensor that is made of several")
    places = [-1] * (1 + max((_base(node)[0] for node in given), default=-1))
    for at, base in enumerate(bases):
        places[base] = at
    return tuple(places)
