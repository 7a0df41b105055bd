"""The recomputation that a search of clusters may choose for a pipeline rank, least first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from .degrees import Degrees
from .kept_names import by_layers, keeping
from .recompute_choice import kept_pieces
from .step_bounds import LayerCosts, StepBounds
from .training import Training

HALF = ":1/2"
"""Ends an entry where half of the layers have its policy, the others that of the entry before."""

PLAIN = ("none", "selective", "full:1/2", "full")


class RecomputeLadder:
    """Policies of a layer, each of which runs again all that those before it run again.

    Between ``none`` and ``full`` stand those that keep what the ops make that save the most seconds
    for a byte: all of them, then one less, down to one. ``selective`` is among them where what it
    runs again lies between what its neighbours do. As each contains the one before, a later entry
    is never faster. Entries depend on the sizes of a layer's tensors, and are found once for each.

    Parameters
    ----------
    keep
        Whether policies name single ops; else ``none``, ``selective`` and ``full``, which launchers
        of frameworks have words for.
    """

    def __init__(self, bounds: StepBounds, *, keep: bool = True) -> None:
        self.bounds = bounds
        self.keep = keep
        self._found: dict[tuple[object, ...], tuple[str, ...]] = {}

    def entries(self, degrees: Degrees, training: Training) -> tuple[str, ...]:
        """Entries from the least recomputation to the most; each keeps less than the one before.

        Examples
        --------
        >>> from schedsim.clusters import get_architecture, get_fabric
        >>> bounds = StepBounds(get_architecture("llama3.2-1b"), get_fabric("h100-80gb"))
        >>> found = RecomputeLadder(bounds).entries(Degrees(), Training())
        >>> found[0], found[-3:]
        ('none', ('keep=mixed', 'full:1/2', 'full'))
        """
        if not self.keep:
            return PLAIN
        model = self.bounds.model
        experts = 2 * sum(map(model.has_experts, range(model.num_layers))) >= model.num_layers
        key = self.bounds.layer_key(degrees, training, experts)
        if key not in self._found:
            pieces = kept_pieces(model, degrees, training, self.bounds.fabric, experts=experts)
            names = [piece.name for piece in pieces]
            listed = [keeping(names[:count]) for count in range(len(names), 0, -1)]
            policies = ("none", "selective", *listed, "full")
            costs = {
                one: self.bounds.layer_costs(degrees, training, experts, one) for one in policies
            }
            found = ["none"]
            for one in (*listed, "full"):
                between = (found[-1], "selective", one)
                if _nested([costs[name] for name in between]):
                    found.append("selective")
                if _nested([costs[found[-1]], costs[one]]):
                    found.append(one)
            self._found[key] = (*found[:-1], found[-1] + HALF, found[-1])
        return self._found[key]


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
    """
    name = entries[place]
    policy = name.removesuffix(HALF)
    if policy == name or num_layers < 2:
        return policy
    half = -(-num_layers // 2)
    return by_layers([policy] * half + [entries[place - 1]] * (num_layers - half))
