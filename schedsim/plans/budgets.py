"""Budgets as people write them: bytes, sizes, or shares of the store-all peak.

The store-all peak is the simulated peak of the step that recomputes nothing, model state included.
A share means the same in the Python API, on the command line and in sweeps.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING

from ..checks.value_checks import MAX_BYTES, shown
from ..errors import SchedsimError
from ..units import UnitError, parse_bytes

if TYPE_CHECKING:
    from ..dataflow.chain import Chain
    from ..dataflow.graph import Graph

_HINT = "give an int of bytes, or a text like '8GB' or '60%'"


def is_share(text: str) -> bool:
    """Whether `text` is written as a share: ``"60%"``."""
    return text.strip().endswith("%")


def parse_share(text: str) -> Fraction:
    """The share that `text` stands for; 1 is the whole peak.

    Raises
    ------
    UnitError
        `text` is not a number above 0 and up to 1000, followed by ``%``.

    Examples
    --------
    >>> parse_share("12.5 %")
    Fraction(1, 8)
    """
    try:
        share = Fraction(text.strip().removesuffix("%").strip())
    except (ValueError, ZeroDivisionError):
        share = Fraction(-1)
    if not 0 < share <= 1000:
        raise UnitError(f"{shown(text)} is not a share", hint="write it like 50% or 12.5%")
    return share / 100


def check_budget(text: str) -> str:
    """`text` itself if it is a size or a share; `UnitError` otherwise."""
    parse_share(text) if is_share(text) else parse_bytes(text)
    return text


def parse_budget(text: str, store_all_bytes: int | Callable[[], int]) -> int:
    """Bytes of a budget written as a size, or as a share of `store_all_bytes`, rounded down.

    Parameters
    ----------
    store_all_bytes
        The store-all peak, or a function that computes it and is called only for a share.

    Examples
    --------
    >>> parse_budget("50%", 93), parse_budget("8GB", 93)
    (46, 8000000000)
    """
    if not is_share(text):
        return parse_bytes(text)
    share = parse_share(text)
    whole = store_all_bytes if isinstance(store_all_bytes, int) else store_all_bytes()
    return min(int(whole * share), MAX_BYTES)


def read_budget(value: int | str, workload: Chain | Graph) -> int:
    """Bytes of a budget for `workload`: an ``int``, a size as text, or a share of its peak.

    Raises
    ------
    SchedsimError
        The budget is none of these, or is negative.

    Examples
    --------
    >>> import schedsim
    >>> chain = schedsim.Chain.from_arrays("two", 4, forward_s=[1, 1], backward_s=[2, 2],
    ...                                    output_bytes=[4, 4], saved_bytes=[10, 10])
    >>> read_budget("100%", chain), read_budget("50%", chain)
    (32, 16)
    """
    if isinstance(value, str):
        return parse_budget(value, lambda: store_all_peak(workload))
    return sized_budget(value)


def sized_budget(value: int | str) -> int:
    """Bytes of a budget for several workloads; a share of one workload's peak is refused.

    Raises
    ------
    SchedsimError
        The budget is a share, is not a number of bytes, is negative, or is above 9 PB.
    """
    if isinstance(value, str):
        if is_share(value):
            raise SchedsimError(
                f"a budget of {value} differs for every size of the workload",
                hint="give a size, like 8GB",
            )
        return parse_bytes(value)
    try:
        size = operator.index(value)  # numpy's integers too
    except TypeError:
        size = -1
    if isinstance(value, bool) or size < 0:
        raise SchedsimError(f"budget {shown(value)} is not a number of bytes", hint=_HINT)
    if size > MAX_BYTES:
        raise SchedsimError(f"budget {shown(value)} is more than 9 PB", hint="give it in bytes")
    return size


def store_all_peak(workload: Chain | Graph) -> int:
    """The simulated peak of the step that recomputes nothing, in bytes. O(ops)."""
    from ..simulation.schedule import Schedule
    from ..simulation.simulator import simulate

    return simulate(workload, Schedule.store_all(workload)).peak_bytes
