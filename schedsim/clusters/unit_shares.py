"""Parameters of a rank tensor by tensor, as PyTorch's allocator is asked for them."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np

from ..allocators import Requests
from ..workloads.architecture import Architecture
from .degrees import Degrees
from .fabric import Fabric
from .float8_layer import gathers_float8, write_layer
from .stages import StageParts, end_parameters, layer_shard, layer_share
from .training import Training


class UnitShares:
    """Parameters of each tensor in the units of a rank, as PyTorch allocates them.

    Gathered parameters, gradients that are added up, and what stays between steps are a tensor for
    each parameter, and the optimizer's moments two; gaps between activations take small ones. Norms
    of a layer count as one.
    """

    def __init__(
        self,
        model: Architecture,
        degrees: Degrees,
        training: Training,
        fabric: Fabric,
        stages: list[StageParts],
    ) -> None:
        self._of_layer: dict[bool, list[int]] = {}
        self._low = gathers_float8(model, degrees, training)
        self.model, self.degrees, self.stages = model, degrees, stages
        for number in (i for stage in stages for i in stage.layers):
            experts = model.has_experts(number)
            if experts not in self._of_layer:
                layer = write_layer(model, degrees, training, 1, fabric, experts=experts)
                sizes = [size // 2 for size in layer.weights.values()]
                norms = max(1, layer_share(model, degrees, number) - sum(sizes))
                self._of_layer[experts] = [*sizes, norms]

    def of_unit(self, unit: str) -> list[int]:
        """The share of a layer, by its number, or of ``ends``, ``embedding`` or ``head``."""
        if unit.isdecimal():
            return self._of_layer[self.model.has_experts(int(unit))]
        pairs = [end_parameters(self.model, stage, self.degrees) for stage in self.stages]
        both = [sum(one) for one in zip(*pairs, strict=True)]
        wanted = {"embedding": both[:1], "head": both[1:]}.get(unit, both)
        return [count for count in wanted if count] or [1]

    def gathered(self, unit: str) -> list[int]:
        """The share of each parameter in a unit's gathered bytes: norms stay in 16 bits."""
        found = self.of_unit(unit)
        return [*found[:-1], 2 * found[-1]] if self._low and unit.isdecimal() else found

    def of_state(self) -> list[int]:
        """All that the rank keeps, in the order of the model; shards are as large in proportion."""
        found: list[int] = []
        for stage in self.stages:
            embedding, head = end_parameters(self.model, stage, self.degrees)
            found.append(embedding)
            for number in stage.layers:
                sizes = self.of_unit(str(number))
                shard = layer_shard(self.model, self.degrees, number) * self.degrees.shards
                found += in_shares(shard, sizes)
            found.append(head)
        return [count for count in found if count]


def in_shares(size_bytes: int, shares: list[int]) -> list[int]:
    """`size_bytes` in one part for each tensor, with nothing lost by rounding.

    Examples
    --------
    >>> in_shares(10, [1, 1, 2])
    [2, 3, 5]
    """
    marks = [size_bytes * done // sum(shares) for done in accumulate(shares, initial=0)]
    return [end - start for start, end in pairwise(marks) if end > start]


def tensor_by_tensor(one: Requests, shares: UnitShares) -> Requests:
    """`one` with the parameters of each unit, and sums of their gradients, in their tensors.

    What the optimizer makes on the way is a tensor for each parameter as well.
    """
    parts: list[list[int]] = []
    for name, size in zip(one.item_names, one.item_bytes.tolist(), strict=True):
        if name == "workspace of optimizer":
            parts.append(in_shares(size, shares.of_state()))
            continue
        kind, _, rest = name.removeprefix("G ").partition(" ")
        of = {"W": shares.gathered, "sum": shares.of_unit}.get(kind)
        parts.append([size] if of is None else in_shares(size, of(rest.partition(" ")[0])))
    counts = np.array([len(sizes) for sizes in parts], dtype=np.int64)
    first = np.concatenate([[0], np.cumsum(counts)])[:-1]
    released = one.items < 0
    item = np.where(released, ~one.items, one.items)
    times = counts[item]
    within = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
    made = np.repeat(first[item], times) + within
    return Requests(
        np.where(np.repeat(released, times), ~made, made),
        np.repeat(one.events, times),
        np.array([size for sizes in parts for size in sizes], dtype=np.int64),
        np.repeat(one.item_stream, counts),
        tuple(name for name, sizes in zip(one.item_names, parts, strict=True) for _ in sizes),
        one.num_events,
        one.num_streams,
    )
