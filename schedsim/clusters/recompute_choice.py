"""Chooses what each layer of each rank keeps, so that a step fits and recomputes little.

Pieces to keep are what single ops of a layer make, in as many layers as fit. They are added by
seconds saved for a byte, the best first; what room the last one leaves goes to smaller ones. Layers
that keep more come last in the forward: their backward is first, and what they keep lives for the
shortest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..workloads.architecture import Architecture
from .degrees import Degrees
from .fabric import Fabric
from .float8_layer import write_layer
from .kept_names import by_layers, keeping
from .layer_recompute import is_gathered_again, kept_tensors, repeated_ops
from .rank_memory import rank_memory
from .stages import StageParts, rank_stages, split_stages
from .tape import RankOp
from .training import Training

_KINDS = ("product", "attention", "core", "scatter")
"""Kinds of ops worth keeping: pointwise ops take little time for their bytes."""


@dataclass(frozen=True, slots=True)
class KeptPiece:
    """The output of an op of a layer, if it is kept: its bytes, and the seconds saved.

    It is `slight` where the op only moves what other ops make.
    """

    name: str
    size_bytes: int
    saved_s: float
    slight: bool = False


def least_recomputation(
    model: Architecture, degrees: Degrees, training: Training, fabric: Fabric, budget_bytes: int
) -> Training:
    """`training` with the ``recompute`` of least time within a budget that was found.

    Parameters
    ----------
    training
        Its own ``recompute`` is not looked at.
    budget_bytes
        Bytes that the allocator of each rank may reserve.

    Returns
    -------
    Training
        Every rank for itself: ``none`` where that fits, ``full`` where nothing else does or not
        even that.

    Notes
    -----
    Simulates the memory of each rank O(ops of a layer * log(layers)) times. Not proven to be the
    least: a knapsack is filled in the order of seconds for a byte.

    Examples
    --------
    >>> from schedsim.clusters import get_architecture, get_fabric
    >>> model, fabric = get_architecture("llama3.2-1b"), get_fabric("h100-80gb")
    >>> chosen = least_recomputation(model, Degrees(fsdp=8), Training(batch=4), fabric, 70 * 10**9)
    >>> chosen.recompute.partition(",")[0]  # of the first 12 layers
    'keep=mixed:12'
    """
    choice = _LayerChoice(model, degrees, training, fabric, budget_bytes)
    found = [choice.of_rank(rank) for rank in range(degrees.pipeline)]
    return replace(training, recompute=found[0] if len(set(found)) == 1 else "/".join(found))


def kept_pieces(
    model: Architecture,
    degrees: Degrees,
    training: Training,
    fabric: Fabric,
    *,
    experts: bool,
    pointwise: bool = False,
) -> list[KeptPiece]:
    """The sets that a layer may keep: each adds the next best op by seconds saved a byte.

    With `pointwise`, pointwise ops and gathers are among them, by what each saves where all others
    are kept.
    """
    tokens = training.micro_batch(degrees) * training.seq // degrees.context
    layer = write_layer(model, degrees, training, tokens, fabric, experts=experts)

    def again_s(names: list[str]) -> float:
        kept = kept_tensors(layer, keeping(names), training)
        return sum(_op_s(op, fabric) for op in repeated_ops(layer, kept, training))

    worth = [op for op in repeated_ops(layer, set(), training) if op.kind in _KINDS]
    chosen: list[KeptPiece] = []
    while worth:
        names = [piece.name for piece in chosen]
        before_s = again_s(names)
        pieces = [
            KeptPiece(op.name, sum(op.writes.values()), before_s - again_s([*names, op.name]))
            for op in worth
        ]
        best = max(pieces, key=lambda piece: (_density(piece), piece.size_bytes))
        if best.saved_s <= 0.0:
            break
        chosen.append(best)
        worth = [op for op in worth if op.name != best.name]
    if pointwise:
        names = [piece.name for piece in chosen]
        before_s = again_s(names)
        pieces = [
            KeptPiece(op.name, sum(op.writes.values()), before_s - again_s([*names, op.name]), True)
            for op in repeated_ops(layer, kept_tensors(layer, keeping(names), training), training)
            if op.name not in names and not is_gathered_again(op, training)
        ]
        chosen += [piece for piece in pieces if piece.saved_s > 0.0]
        chosen.sort(key=lambda piece: (-_density(piece), -piece.size_bytes))
    return chosen


def _density(piece: KeptPiece) -> float:
    # Rounded: products differ in it by what they move alone, and the larger goes first then.
    return float(f"{piece.saved_s / max(1, piece.size_bytes):.1e}")


def _op_s(op: RankOp, fabric: Fabric) -> float:
    return op.link_s if op.stream != "compute" else op.compute_s(fabric) + op.link_s


class _LayerChoice:
    """The choices for all ranks; ranks that are alike are looked at once."""

    def __init__(
        self,
        model: Architecture,
        degrees: Degrees,
        training: Training,
        fabric: Fabric,
        budget_bytes: int,
    ) -> None:
        self.model, self.degrees, self.training = model, degrees, training
        self.fabric, self.budget_bytes = fabric, budget_bytes
        self.stages = split_stages(model, degrees, training)

    def of_rank(self, rank: int) -> str:
        """The setting of pipeline rank `rank`."""
        if self._fits(rank, "none"):
            return "none"
        mine = [number for stage in self._stages(rank) for number in stage.layers]
        num_layers = max(len(stage.layers) for stage in self._stages(rank))
        if not mine or not self._fits(rank, "full"):
            return "full"
        routed = sum(map(self.model.has_experts, mine))
        pieces = kept_pieces(
            self.model,
            self.degrees,
            self.training,
            self.fabric,
            experts=2 * routed >= len(mine) and routed > 0,
        )
        counts = dict.fromkeys([piece.name for piece in pieces], 0)
        for piece in pieces:
            low, high = 0, num_layers  # as many layers as fit; `high` + 1 do not
            while low < high:
                middle = (low + high + 1) // 2
                if self._fits(rank, _setting({**counts, piece.name: middle}, num_layers)):
                    low = middle
                else:
                    high = middle - 1
            counts[piece.name] = low
        return self._with_plain_layers(rank, counts, num_layers)

    def _with_plain_layers(self, rank: int, counts: dict[str, int], num_layers: int) -> str:
        """As many layers as fit are not checkpointed: nothing of them runs again."""
        low, high = 0, num_layers - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._fits(rank, _setting(counts, num_layers, middle)):
                low = middle
            else:
                high = middle - 1
        return _setting(counts, num_layers, low)

    def _stages(self, rank: int) -> list[StageParts]:
        return rank_stages(self.stages, self.degrees, rank)

    def _fits(self, rank: int, recompute: str) -> bool:
        """Whether `rank` with this setting reserves no more than the budget."""
        every = "/".join([recompute] * self.degrees.pipeline)
        training = replace(self.training, recompute=every)
        found = rank_memory(self.model, self.degrees, training, self.fabric, rank)
        return found.reserved_bytes <= self.budget_bytes


def _setting(counts: dict[str, int], num_layers: int, plain: int = 0) -> str:
    """Each piece is kept in so many of the last layers; the last `plain` keep everything."""
    policies = []
    for layer in range(num_layers):
        names = [name for name, count in counts.items() if layer >= num_layers - count]
        policies.append(keeping(names))
    if plain:
        policies[-plain:] = ["none"] * plain
    return by_layers(policies)
