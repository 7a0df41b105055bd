"""``schedsim.cluster``: predict a training step in one call."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ..checks.checked_arguments import checked
from ..errors import SchedsimError, did_you_mean
from ..workloads.architecture import Architecture
from ..workloads.architectures_by_name import get_architecture
from .degrees import Degrees, product_in_words
from .fabric import check_network, get_fabric
from .libraries import Libraries
from .prediction import ClusterPrediction, predict
from .training import Training


def with_libraries(options: dict[str, Any], model: Architecture) -> dict[str, Any]:
    """`options` of a step of `model` with the libraries in the place of a version of PyTorch.

    Raises
    ------
    SchedsimError
        The version is not known, or both are given.
    """
    if "torch" not in options:
        return options
    if "libraries" in options:
        raise SchedsimError("torch is part of libraries", hint="Libraries.of_torch(torch, ...)")
    others = {name: value for name, value in options.items() if name != "torch"}
    state = options.get("state", Training().state)
    return others | {"libraries": Libraries.of_step(options["torch"], model, state)}


def of_model(options: dict[str, Any], model: Architecture) -> dict[str, Any]:
    """`options` of a step of `model`, with its libraries, and with sequences that it can take.

    A model that has learned fewer positions than the default sequence has tokens gets as many.

    Examples
    --------
    >>> of_model({}, get_architecture("gpt2")), of_model({}, get_architecture("llama3-8b"))
    ({'seq': 1024}, {})
    """
    found = with_libraries(options, model)
    if "seq" not in found and 0 < model.positions < Training().seq:
        found = {**found, "seq": model.positions}
    return found


def split_options(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """`options` split into (degrees, settings).

    Raises
    ------
    SchedsimError
        A name is neither a degree nor a setting; the hint gives the nearest name.
    """
    degrees = {one.name for one in fields(Degrees)}
    settings = {one.name for one in fields(Training)}
    for name in options:
        if name not in degrees | settings:
            raise SchedsimError(
                f"{name!r} is no option of a cluster",
                hint=did_you_mean(name, degrees | settings, ", ".join(sorted(degrees | settings))),
            )
    return (
        {name: value for name, value in options.items() if name in degrees},
        {name: value for name, value in options.items() if name in settings},
    )


def whole_degrees(devices: int | None, given: dict[str, Any]) -> Degrees:
    """The degrees `given`; ``fsdp`` takes the other devices unless it or ``replicate`` is given.

    Raises
    ------
    SchedsimError
        Their product is not `devices`.

    Examples
    --------
    >>> whole_degrees(64, {"tensor": 8})
    Degrees(fsdp=8, replicate=1, tensor=8, pipeline=1, context=1, expert=1, whole_experts=False)
    """
    degrees = Degrees(**given)
    degrees.check_numbers()
    if devices is not None and (isinstance(devices, bool) or devices < 1):
        raise SchedsimError(f"--devices {devices!r} is not a whole number, 1 or more")
    if devices is None or degrees.num_devices == devices:
        return degrees
    others = degrees.num_devices // degrees.fsdp
    if "fsdp" not in given and devices % others:
        raise SchedsimError(
            f"--devices {devices} is not a multiple of {product_in_words(given)}",
            hint="--fsdp takes the rest: what is given has to divide it",
        )
    if "fsdp" not in given:
        return Degrees(**{**given, "fsdp": devices // others})
    raise SchedsimError(
        f"--devices {devices} is not the product of the degrees, {degrees.num_devices}",
        hint="fsdp x replicate x tensor x pipeline x context; leave --fsdp out to take the rest",
    )


@checked
def cluster(
    preset: str | Architecture,
    *,
    devices: int | None = None,
    device: str = "h100-80gb",
    efficiency: float | None = None,
    flash: int = 2,
    network: float | None = None,
    **options: Any,
) -> ClusterPrediction:
    """Memory of every rank and time of a training step on a cluster.

    Parameters
    ----------
    preset
        A name in `schedsim.clusters.ARCHITECTURES`, or ``hf:`` before the path of a
        ``config.json`` or the name of a published model; or a model of one's own.
    devices
        Number of devices; by default the product of the degrees. ``fsdp`` takes devices that the
        degrees leave.
    device
        A name that `schedsim.clusters.get_fabric` takes.
    efficiency
        Share of the device's arithmetic peak that its ops reach, in (0, 1]; calibrated by default.
    flash
        Which FlashAttention runs: 1, 2, or on Hopper 3.
    network
        GB/s that one device sends to other nodes; by default 50, and 25 of an A100.
    **options
        Degrees (``fsdp``, ``replicate``, ``tensor``, ``pipeline``, ``context``, ``expert``) and
        settings (``seq``, ``batch``, ``recompute``, ...), the fields of
        `schedsim.clusters.Degrees` and `schedsim.clusters.Training`. ``torch="2.8"`` stands for the
        ``libraries`` of this version (2.15).

    Returns
    -------
    ClusterPrediction
        Bytes by rank and kind, reserved bytes, seconds.

    Raises
    ------
    SchedsimError
        A name is unknown, or options do not go together.

    Notes
    -----
    Nothing runs: O(n log n) for n ops of a rank's step, for one rank of each pipeline stage.

    Examples
    --------
    >>> import schedsim
    >>> step = schedsim.cluster("llama3-70b", devices=64, tensor=8, seq=4096, recompute="full")
    >>> step.degrees.fsdp, step.fullest.kinds["parameters"] * 64 == 4 * 70553706496
    (8, True)
    """
    model = get_architecture(preset)
    given, settings = split_options(of_model(options, model))
    degrees = whole_degrees(devices, given)
    fabric = get_fabric(device, efficiency, flash, network)
    check_network(network, degrees.num_devices, fabric)
    return predict(model, degrees, Training(**settings), fabric)
