"""Policies of recomputation that name the ops of a layer whose outputs are kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

_BEGINS = "keep="
_HOST = "@host"


def kept_names(policy: str) -> frozenset[str] | None:
    """The ops that ``keep=q+v+mixed`` names; ``None`` of another policy.

    Examples
    --------
    >>> sorted(kept_names("keep=q+mixed"))
    ['mixed', 'q']
    >>> kept_names("full") is None, kept_names("keep=") is None
    (True, True)
    """
    names = policy.removeprefix(_BEGINS).split("+")
    return frozenset(names) if policy.startswith(_BEGINS) and all(names) else None


def keeping(names: Iterable[str]) -> str:
    """The policy that keeps what the ops `names` make; ``full`` where there are none.

    Examples
    --------
    >>> keeping(["q", "mixed"]), keeping([])
    ('keep=q+mixed', 'full')
    """
    joined = "+".join(names)
    return _BEGINS + joined if joined else "full"


def on_host(policy: str) -> str:
    """`policy` of a layer whose kept tensors lie in host memory until its backward."""
    return policy + _HOST


def split_host(policy: str) -> tuple[str, int | None]:
    """(policy without its offloading, of every how many layers the tensors are offloaded).

    0: of none; ``None`` where the number is none.

    Examples
    --------
    >>> split_host("none"), split_host("full@host"), split_host("keep=q@host3")
    (('none', 0), ('full', 1), ('keep=q', 3))
    """
    base, host, every = policy.partition(_HOST)
    if not host:
        return policy, 0
    if not every:
        return base, 1
    return base, int(every) if every.isdecimal() and int(every) else None


def without_host(recompute: str) -> str:
    """A setting ``recompute`` without its offloading.

    Examples
    --------
    >>> without_host("none@host2/full@host:3,none:1")
    'none/full:3,none:1'
    """
    return re.sub(rf"{_HOST}\d*", "", recompute)


def by_layers(policies: Sequence[str]) -> str:
    """The setting ``recompute`` of layers with these policies, first to last.

    Examples
    --------
    >>> by_layers(["full", "full", "none"]), by_layers(["full", "full"])
    ('full:2,none:1', 'full')
    """
    runs = [(policy, len(list(group))) for policy, group in groupby(policies)]
    if len(runs) == 1:
        return runs[0][0]
    return ",".join(f"{policy}:{count}" for policy, count in runs)
