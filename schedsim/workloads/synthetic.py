"""Synthetic chains for experiments: shapes that tell planners apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import numpy as np
from numpy.typing import NDArray

from ..checks.checked_arguments import check_arguments
from ..checks.value_checks import shown
from ..dataflow.chain import Chain
from ..errors import SchedsimError


def _generator(function: Callable[[int, int], Chain]) -> Callable[..., Chain]:
    """Make `function` refuse an invalid number of stages or seed."""

    @wraps(function)
    def generator(num_stages: int, seed: int = 0) -> Chain:
        check_arguments(function, {"num_stages": num_stages, "seed": seed})
        if num_stages < 1 or seed < 0:
            raise SchedsimError(
                f"{shown(num_stages)} stages from seed {shown(seed)}",
                hint="at least one stage, and a seed of 0 or more",
            )
        return function(num_stages, seed)

    return generator


@_generator
def uniform(num_stages: int, seed: int = 0) -> Chain:
    """Equal stages: 1 ms forward, 2 ms backward, 1 MB out, 8 MB saved.

    Parameters
    ----------
    num_stages
        At least 1.
    seed
        Plays no part; there so that all generators are called alike.

    Examples
    --------
    >>> uniform(4).store_all_s
    0.012
    """
    return _chain("uniform", np.ones(num_stages), np.ones(num_stages))


@_generator
def alternating(num_stages: int, seed: int = 0) -> Chain:
    """Two kinds of stage in turn, as attention and MLP blocks are.

    Parameters
    ----------
    num_stages
        At least 1.
    seed
        Plays no part; there so that all generators are called alike.

    Examples
    --------
    >>> [stage.saved_bytes for stage in alternating(3).stages]
    [8000000, 5900000, 8000000]
    """
    kind = np.arange(num_stages) % 2
    return _chain("alternating", np.where(kind, 1.2, 1.0), np.where(kind, 0.7, 1.0))


@_generator
def u_shaped(num_stages: int, seed: int = 0) -> Chain:
    """Large activations at both ends and small ones in the middle, as in an autoencoder.

    Parameters
    ----------
    num_stages
        At least 1.
    seed
        Plays no part; there so that all generators are called alike.

    Examples
    --------
    >>> [stage.output_bytes for stage in u_shaped(3).stages]
    [1050000, 50000, 1050000]
    """
    distance = np.abs(np.linspace(-1, 1, num_stages))
    return _chain("u-shaped", np.ones(num_stages), 0.05 + distance**2, of_output=True)


@_generator
def one_huge(num_stages: int, seed: int = 0) -> Chain:
    """Equal stages except one, at a random place, that saves nearly thirty times as much.

    Parameters
    ----------
    num_stages
        At least 1.
    seed
        Of the generator that draws them.

    Examples
    --------
    >>> sorted(stage.saved_bytes for stage in one_huge(3, seed=1).stages)
    [8000000, 8000000, 211000000]
    """
    size = np.ones(num_stages)
    size[np.random.default_rng(seed).integers(num_stages)] = 30
    return _chain("one-huge", np.ones(num_stages), size)


@_generator
def heavy_tailed(num_stages: int, seed: int = 0) -> Chain:
    """Times and sizes from a Pareto distribution of index 1.1, cut at 100 times the least.

    Parameters
    ----------
    num_stages
        At least 1.
    seed
        Of the generator that draws them.

    Examples
    --------
    >>> heavy_tailed(5, seed=1) == heavy_tailed(5, seed=1) != heavy_tailed(5, seed=2)
    True
    """
    rng = np.random.default_rng(seed)
    time, size = np.minimum(1 + rng.pareto(1.1, (2, num_stages)), 100)
    return _chain("heavy-tailed", time, size, of_output=True)


def _chain(
    name: str, time: NDArray[np.float64], size: NDArray[np.float64], *, of_output: bool = False
) -> Chain:
    output = np.rint(1e6 * (size if of_output else np.ones_like(size))).astype(np.int64)
    saved = output + np.rint(7e6 * size).astype(np.int64)
    return Chain.from_arrays(
        f"{name}-{time.size}",
        10**6,
        forward_s=0.001 * time,
        backward_s=0.002 * time,
        output_bytes=output,
        saved_bytes=saved,
    )


SYNTHETIC: dict[str, Callable[[int, int], Chain]] = {
    "uniform": uniform,
    "alternating": alternating,
    "u-shaped": u_shaped,
    "one-huge": one_huge,
    "heavy-tailed": heavy_tailed,
}
"""Generators by name; each takes the number of stages and a seed."""
