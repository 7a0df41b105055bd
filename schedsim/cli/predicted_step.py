"""The step that the options of a cluster ask for, with ``--recompute fit`` too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .options.cluster_options import FIT, ClusterRequest
from .show import working

if TYPE_CHECKING:
    from ..clusters import ClusterPrediction


def predicted_step(request: ClusterRequest, budget: int | None) -> ClusterPrediction:
    """The prediction; with ``--recompute fit`` of what fits the budget in the least time found."""
    from ..clusters import cluster, least_recomputation, predict

    words = request.words()
    fits = words.get("recompute") == FIT
    if fits:
        words["recompute"] = "full"
    with working("simulating the ranks"):
        found = cluster(request.preset, **words)
        if not fits:
            return found
        limit = budget if budget is not None else found.fabric.device.memory_bytes
        training = least_recomputation(
            found.model, found.degrees, found.training, found.fabric, limit
        )
        return predict(found.model, found.degrees, training, found.fabric)
