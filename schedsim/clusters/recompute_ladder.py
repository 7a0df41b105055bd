"""The recomputation that a search of clusters may choose for a pipeline rank, least first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from .degrees import Degrees
from .kept_names import by_layers, keeping, on_host, split_host
from .layers_in_turn import LayerCosts
from .recompute_choice import kept_pieces
from .step_bounds import StepBounds
from .training import Training

HALF = ":1/2"
"""Ends an entry where half of the layers have its policy, the others that of the entry before."""

PLAIN = ("none", "selective", "full:1/2", "full")

_PARTS = 16
"""Entries that differ in pointwise ops keep bytes that differ by so small a part of all."""

_EVERY = (1, 2, 3, 4, 6, 8)
"""An entry may offload each layer, every second layer, and so on."""


class RecomputeLadder:
    """Policies of a layer, each of which runs again all that those before it run again.

    Between ``none`` and ``full`` stand those that keep what the ops make that save the most seconds
    for a byte: all of them, then one less, down to one. ``selective`` is among them where what it
    runs again lies between what its neighbours do. Of an eager step, pointwise ops are named too.
    Behind each policy stands the same with kept tensors in host memory: those of as many layers as
    copies hide behind computation for, evenly spread. As each entry runs again what the one before
    does, a later one is not faster than an earlier one whose copies cost nothing.
    Entries depend on the sizes of a layer's tensors, and are found once for each.

    Parameters
    ----------
    keep
        Whether policies name single ops; else they are those of `plain`.
    plain
        Policies where none names single ops.
    offload
        Whether kept tensors may lie in host memory.
    """

    def __init__(
        self,
        bounds: StepBounds,
        *,
        keep: bool = True,
        offload: bool = True,
        plain: tuple[str, ...] = PLAIN,
    ) -> None:
        self.bounds = bounds
        self.keep = keep
        self.plain = plain
        self.offload = offload
        self._found: dict[tuple[object, ...], tuple[str, ...]] = {}

    def entries(self, degrees: Degrees, training: Training) -> tuple[str, ...]:
        """Entries from the least recomputation to the most; each keeps less than the one before.

        Examples
        --------
        >>> from schedsim.clusters import get_architecture, get_fabric
        >>> bounds = StepBounds(get_architecture("llama3.2-1b"), get_fabric("h100-80gb"))
        >>> found = RecomputeLadder(bounds).entries(Degrees(), Training())
        >>> found[:2], found[-3:]
        (('none', 'none@host8'), ('full:1/2', 'full', 'full@host'))
        """
        model = self.bounds.model
        experts = 2 * sum(map(model.has_experts, range(model.num_layers))) >= model.num_layers
        key = self.bounds.layer_key(degrees, training, experts)
        if key not in self._found:
            plain = self._policies(degrees, training, experts) if self.keep else self.plain
            self._found[key] = tuple(
                entry
                for policy in plain
                for entry in (policy, *self._hosted(degrees, training, experts, policy))
            )
        return self._found[key]

    def _hosted(
        self, degrees: Degrees, training: Training, experts: bool, policy: str
    ) -> list[str]:
        """`policy` with offloaded layers, whose copies hide behind computation."""
        if not self.offload or policy.endswith(HALF):
            return []
        costs = self.bounds.layer_costs(degrees, training, experts, on_host(policy))
        between_s = min(costs.forward_s, costs.backward_s)
        copy_s = self.bounds.fabric.copy_s(costs.host_bytes)
        every = next((every for every in _EVERY if copy_s <= every * between_s), 0)
        return [on_host(policy) + (str(every) if every > 1 else "")] if every else []

    def _policies(self, degrees: Degrees, training: Training, experts: bool) -> tuple[str, ...]:
        """Policies without offloading."""
        model = self.bounds.model
        pieces = kept_pieces(
            model,
            degrees,
            training,
            self.bounds.fabric,
            experts=experts,
            pointwise=not training.compiled,  # compiled code fuses what it recomputes of these
        )
        names = [piece.name for piece in pieces]
        slight = {keeping(names[: k + 1]): piece.slight for k, piece in enumerate(pieces)}
        listed = list(slight)[::-1]
        policies = ("none", "selective", *listed, "full")
        costs = {one: self.bounds.layer_costs(degrees, training, experts, one) for one in policies}
        found = ["none"]
        for one in (*listed, "full"):
            between = (found[-1], "selective", one)
            if _nested([costs[name] for name in between]):
                found.append("selective")
            if _nested([costs[found[-1]], costs[one]]):
                found.append(one)
        sizes = {one: costs[one].kept_bytes for one in found}
        found = _apart(sizes, [one for one in found if slight.get(one)])
        return (*found[:-1], found[-1] + HALF, found[-1])


def _apart(sizes: Mapping[str, int], slight: Sequence[str]) -> list[str]:
    """The policies of `sizes`, largest first, without those `slight` ones that others are near.

    Each of them would be tried, though it hardly differs.
    """
    most = max(sizes.values())
    found = [one for one in sizes if one not in slight]
    for one in slight:
        if all(abs(sizes[one] - sizes[other]) * _PARTS >= most for other in found):
            found.append(one)
    return sorted(found, key=lambda one: -sizes[one])


def _nested(costs: Sequence[LayerCosts]) -> bool:
    """Whether each runs again what the one before does, and more, and keeps less."""
    return all(
        one.again < other.again and one.kept_bytes > other.kept_bytes
        for one, other in pairwise(costs)
    )


def setting(entries: Sequence[str], place: int, num_layers: int) -> str:
    """The setting ``recompute`` of an entry, for a stage of `num_layers` layers.

    Examples
    --------
    >>> setting(("none", "selective", "full:1/2", "full"), 2, 15)
    'full:8,selective:7'
    >>> setting(("none", "none@host8", "none@host4"), 1, 6)  # too few layers
    'none'
    """
    name = entries[place]
    base, every = split_host(name)
    if every:
        return name if every < num_layers or every == 1 else base
    policy = name.removesuffix(HALF)
    if policy == name or num_layers < 2:
        return policy
    half = -(-num_layers // 2)
    before = next(one for one in reversed(entries[:place]) if not split_host(one)[1])
    return by_layers([policy] * half + [before] * (num_layers - half))
