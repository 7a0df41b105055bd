"""What the integers of an embedding bag say, where one is measured on made-up inputs."""

from __future__ import annotations

import torch
from torch import Tensor

from ..capture.program import Call, Program, refs
from ..torch_private.op_modes import schema_of

_BAGS = {
    torch.ops.aten._embedding_bag,
    torch.ops.aten._embedding_bag_forward_only,
    torch.ops.aten._embedding_bag_backward,
    torch.ops.aten._embedding_bag_dense_backward,
}


def bag_contents(program: Program, call: Call) -> dict[int, Tensor]:
    """Integers that `call` reads, by value, where it is an op of embedding bags.

    The kernels gather the rows of bags that are not empty: they take the most memory where each bag
    has an entry, as nearly all have in practice.
    """
    if getattr(call.target, "overloadpacket", None) not in _BAGS:
        return {}
    names = [argument.name for argument in schema_of(call.target).arguments]
    given = {n: v for n, a in zip(names, call.args, strict=False) for v in refs(a)}
    found: dict[int, Tensor] = {}

    def fill(name: str, content: Tensor) -> None:
        if name in given:
            shape = program.values[given[name]].shape
            if content.numel() == torch.Size(shape).numel():
                found[given[name]] = content.reshape(shape)

    num_entries = program.values[given["indices"]].shape[0]
    sizes = given.get("bag_size", given.get("offsets"))
    num_bags = program.values[sizes].shape[0] if sizes is not None else 0
    if not num_bags or not num_entries:
        return {}
    rows = program.values[given["weight"]].shape[0] if "weight" in given else 0
    rows = rows or int(call.args[names.index("num_weights")])
    # Entry k is of bag k * num_bags // num_entries; where bags are more, the last are empty.
    bag = torch.arange(num_entries) * num_bags // num_entries
    sizes_of = torch.bincount(bag, minlength=num_bags)
    fill("indices", torch.arange(num_entries) % rows)
    fill("offset2bag", bag)
    fill("bag_size", sizes_of)
    fill("offsets", sizes_of.cumsum(0) - sizes_of)
    largest = program.values[given["maximum_indices"]].shape if "maximum_indices" in given else ()
    if largest:
        found[given["maximum_indices"]] = (
            torch.arange(torch.Size(largest).numel()).reshape(largest) % rows
        )
    return found
