"""Findings about a snapshot: what holds the peak, what is stuck, and what would help."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from .history import AllocatedBlock, Moment, peak_of, rounded
from .left_over import left_over_addresses
from .reading import Snapshot
from .request_replay import SETTINGS, Replayed, recorded_conf, replays
from .roles import ACTIVATION, GRADIENT, LEFT_OVER, ROLES, place_of, role_of

SCHEMA = "schedsim.snapshot-findings/1"


@dataclass(frozen=True)
class Group:
    """Blocks of one role that were requested at one place in the code.

    Attributes
    ----------
    num_blocks, requested_bytes
        Number of blocks, and their bytes together.
    """

    role: str
    place: str
    num_blocks: int
    requested_bytes: int


@dataclass(frozen=True)
class Findings:
    """The memory at the peak, by role and place.

    Attributes
    ----------
    peak
        The moment of most requested bytes.
    reserved
        The moment of most reserved bytes.
    by_role
        Role, one of `ROLES` -> requested bytes at the peak.
    groups
        Largest first.
    cached_bytes, stuck_bytes
        Reserved bytes outside of blocks, at the moment of most reserved bytes: in wholly free
        segments, and in gaps between blocks in use.
    savable_bytes
        Activations at the peak except the largest one: an upper limit on what a plan can save.
        What is left from earlier steps is not among them: the program holds it, not the step. 0
        where no backward pass was recorded, as in a server, whose caches no plan can shrink.
    settings
        The bytes that the run reserves under the setting that it was recorded under, and would
        under others.
    """

    peak: Moment
    reserved: Moment
    by_role: dict[str, int]
    groups: tuple[Group, ...]
    cached_bytes: int
    stuck_bytes: int
    savable_bytes: int
    settings: tuple[Replayed, ...]

    def to_dict(self) -> dict[str, Any]:
        """The findings as a JSON document."""
        moments = {}
        for name, moment in (("peak", self.peak), ("reserved_peak", self.reserved)):
            moments[name] = {
                "event": moment.event,
                "num_events": moment.num_events,
                "requested_bytes": moment.requested_bytes,
                "rounded_bytes": moment.rounded_bytes,
                "reserved_bytes": moment.reserved_bytes,
            }
        return {
            "schema": SCHEMA,
            **moments,
            "by_role": self.by_role,
            "groups": [asdict(group) for group in self.groups],
            "cached_bytes": self.cached_bytes,
            "stuck_bytes": self.stuck_bytes,
            "savable_bytes": self.savable_bytes,
            "settings": [asdict(one) for one in self.settings],
        }


def examine(snapshot: Snapshot, confs: Iterable[str] | None = None) -> Findings:
    """The findings about the peak of the run in `snapshot`.

    Parameters
    ----------
    confs
        Settings to replay the run under, as in ``PYTORCH_ALLOC_CONF``, after the one that it was
        recorded under; by default those of `SETTINGS`.

    Raises
    ------
    SchedsimError
        The snapshot holds no memory of the device.
    """
    peak, reserved = peak_of(snapshot), peak_of(snapshot, of="reserved")
    by_role = dict.fromkeys(ROLES, 0)
    together: dict[tuple[str, str], list[int]] = {}
    largest = 0
    left_over = left_over_addresses(snapshot, peak)
    for block in peak.blocks:
        role = role_of(block.frames, known=block.known)
        if role == ACTIVATION and block.address in left_over:
            role = LEFT_OVER
        by_role[role] += block.requested_bytes
        row = together.setdefault((role, place_of(block.frames)), [0, 0])
        row[0] += 1
        row[1] += block.requested_bytes
        if role == ACTIVATION:
            largest = max(largest, block.requested_bytes)
    groups = [Group(role, place, n, size) for (role, place), (n, size) in together.items()]
    groups.sort(key=lambda group: (-group.requested_bytes, group.role, group.place))
    cached, stuck = _unused(reserved)
    own = recorded_conf(snapshot)
    others = SETTINGS if confs is None else confs
    settings = tuple(replays(snapshot, dict.fromkeys((own, *others))))
    savable = by_role[ACTIVATION] - largest if _has_backward(snapshot) else 0
    return Findings(peak, reserved, by_role, tuple(groups), cached, stuck, savable, settings)


def _has_backward(snapshot: Snapshot) -> bool:
    """Whether a backward pass made requests; a plan orders what is kept for one.

    A snapshot without events does not tell, and counts as one with.
    """
    stacks = {event.frames for event in snapshot.events if event.action == "alloc"}
    return not stacks or any(role_of(frames) == GRADIENT for frames in stacks)


def _unused(moment: Moment) -> tuple[int, int]:
    """Bytes of wholly free segments, and of gaps in the others."""
    starts = sorted(moment.segments)
    used = dict.fromkeys(starts, 0)
    at = 0
    blocks: list[AllocatedBlock] = sorted(moment.blocks, key=lambda block: block.address)
    for block in blocks:
        while at + 1 < len(starts) and starts[at + 1] <= block.address:
            at += 1
        if starts:
            used[starts[at]] += rounded(block.requested_bytes)
    cached = sum(moment.segments[start] for start in starts if not used[start])
    stuck = sum(max(0, moment.segments[s] - used[s]) for s in starts if used[s])
    return cached, stuck
