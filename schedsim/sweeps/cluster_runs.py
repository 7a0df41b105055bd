"""The runs of an experiment over settings of clusters, each with the key of its result."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..checks.value_checks import shown
from ..clusters import (
    ClusterPrediction,
    Degrees,
    Training,
    choose,
    cluster,
    get_architecture,
    get_fabric,
    least_recomputation,
    predict,
)
from ..errors import SchedsimError, did_you_mean
from ..units import parse_bytes

CLUSTER_RESULTS_VERSION = 3
"""To be raised when predictions change for the same settings."""

KIND = "cluster"
_SEARCH = ("global_batch", "effort", "keep", "offload")
_DEVICE_WORDS = ("device", "efficiency", "flash", "network")
_OWN = ("preset", "devices", *_DEVICE_WORDS, "mem", "search", *_SEARCH)
_DEVICE = "h100-80gb"
_PLAIN = (str, int, float, bool)


@dataclass(frozen=True)
class ClusterRun:
    """One setting of a cluster: a step that is predicted, or searched for.

    Attributes
    ----------
    key
        SHA-256 over the model's sizes, the settings, the budget and versions.
    label
        The settings, on one line.
    settings
        Arguments of `schedsim.cluster`, or of `schedsim.clusters.choose` if `search`.
    budget_bytes
        Bytes that a device may reserve.
    """

    key: str
    label: str
    preset: str
    settings: Mapping[str, Any]
    budget_bytes: int
    search: bool

    def head(self) -> dict[str, Any]:
        """The part of the run's row that describes the question."""
        return {
            "key": self.key,
            "kind": KIND,
            "workload": self.label,
            "preset": self.preset,
            "options": dict(self.settings),
            "budget_bytes": self.budget_bytes,
            "search": self.search,
        }

    def outcome(self) -> dict[str, Any]:
        """The part of the row that answers it; ``feasible``: every rank fits.

        Raises
        ------
        SchedsimError
            The settings contradict each other.
        """
        if self.search:
            choice = choose(self.preset, self.budget_bytes, **self.settings)
            if choice.best is None:
                return {"status": "infeasible", "reserved_bytes": choice.least_bytes}
            status = "optimal" if choice.optimal else "feasible"
            more = {"lower_bound_s": choice.lower_bound_s, "binds": choice.binds}
            return {"status": status, **_facts(choice.best), **more}
        found = self._predicted()
        fits = found.reserved_bytes <= self.budget_bytes
        return {"status": "feasible" if fits else "infeasible", **_facts(found)}

    def _predicted(self) -> ClusterPrediction:
        """With ``recompute = "fit"``, what fits in the least time found."""
        if self.settings.get("recompute") != "fit":
            return cluster(self.preset, **self.settings)
        full = cluster(self.preset, **{**self.settings, "recompute": "full"})
        setting = full.model, full.degrees
        chosen = least_recomputation(*setting, full.training, full.fabric, self.budget_bytes)
        return predict(*setting, chosen, full.fabric)


def _facts(found: ClusterPrediction) -> dict[str, Any]:
    return {
        "reserved_bytes": found.reserved_bytes,
        "peak_bytes": found.peak_bytes,
        "step_s": found.step_s,
        "tokens_per_device_s": found.tokens_per_device_s,
        "mfu": found.mfu,
        "degrees": asdict(found.degrees),
        "training": asdict(found.training),
    }


def read_clusters(items: Sequence[Any], where: str) -> tuple[ClusterRun, ...]:
    """The runs of the tables `items`; lists within a table multiply.

    Parameters
    ----------
    items
        Tables with ``preset`` and words of `schedsim.cluster`; ``mem``, by default the memory of
        the device; ``search = true`` with ``global_batch`` and ``effort``.
    where
        Name of the field, for errors.

    Raises
    ------
    SchedsimError
        A name or a value is not understood; the message names its place.

    Examples
    --------
    >>> runs = read_clusters([{"preset": "llama3-8b", "devices": [8, 16], "batch": 2}], "clusters")
    >>> [run.label for run in runs]
    ['llama3-8b, devices=8, batch=2', 'llama3-8b, devices=16, batch=2']
    """
    found: dict[str, ClusterRun] = {}
    for number, item in enumerate(items):
        for run in _runs(item, f"{where}[{number}]"):
            found.setdefault(run.key, run)
    return tuple(found.values())


def _runs(item: Any, where: str) -> list[ClusterRun]:
    if not isinstance(item, dict) or not _names(item.get("preset")):
        raise SchedsimError(
            f"{where}: {shown(item)} names no model",
            hint='{preset = "llama3-8b", devices = [8, 16], recompute = "full"}',
        )
    table = {name.replace("-", "_"): value for name, value in item.items()}
    known = [*_OWN, *(one.name for kind in (Degrees, Training) for one in fields(kind))]
    for name, value in table.items():
        if name not in known:
            raise SchedsimError(
                f"{where}.{name}: unknown field", hint=did_you_mean(name, known, ", ".join(known))
            )
        values = value if isinstance(value, list) else [value]
        if not values or not all(isinstance(one, _PLAIN) for one in values):
            raise SchedsimError(f"{where}.{name}: {shown(value)} is no plain value")
    choices = [value if isinstance(value, list) else [value] for value in table.values()]
    found = []
    for point in itertools.product(*choices):
        settings = dict(zip(table, point, strict=True))
        words = [str(settings["preset"])]
        words += [_shown(name, value) for name, value in settings.items() if name != "preset"]
        found.append(_run(settings, ", ".join(words), where))
    return found


def _names(preset: Any) -> bool:
    """Whether this is a name, or a list of them."""
    every = preset if isinstance(preset, list) else [preset]
    return bool(every) and all(isinstance(one, str) for one in every)


def _shown(name: str, value: Any) -> str:
    return name if value is True else f"{name}={value}"


def _run(settings: dict[str, Any], label: str, where: str) -> ClusterRun:
    preset, search = settings.pop("preset"), settings.pop("search", False)
    if not isinstance(search, bool):
        raise SchedsimError(f"{where}.search: {shown(search)} is not true or false")
    if search:
        settings.setdefault("global_batch", settings.get("devices"))
    needed = ("devices", "mem") if search else ()
    for name in needed:
        if settings.get(name) is None:
            raise SchedsimError(f"{where}: a search needs {name}", hint=f"add {name} = ...")
    for name in () if search else _SEARCH:
        if name in settings:
            raise SchedsimError(f"{where}.{name}: belongs to a search", hint="add search = true")
    mem = settings.pop("mem", None)
    try:
        model = get_architecture(preset)
        fabric = get_fabric(
            settings.get("device", _DEVICE),
            settings.get("efficiency"),
            settings.get("flash", 2),
            settings.get("network"),
        )
        budget = parse_bytes(str(mem)) if mem is not None else fabric.device.memory_bytes
    except SchedsimError as error:
        raise SchedsimError(f"{where}: {error.message}", hint=error.hint) from None
    document = {
        "results": CLUSTER_RESULTS_VERSION,
        "model": repr(model),
        "fabric": repr(fabric),
        "settings": settings,
        "budget_bytes": budget,
        "search": search,
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    key = hashlib.sha256(text.encode()).hexdigest()
    return ClusterRun(key, label, preset, settings, budget, search)
