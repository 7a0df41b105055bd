"""Policies of recomputation that name the ops of a layer whose outputs are kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

_BEGINS = "keep="


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
