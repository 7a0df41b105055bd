"""``schedsim explain SNAPSHOT.pickle``: what holds the peak of a run recorded on CUDA."""

from __future__ import annotations

import json

import click

from ..allocators import EXACT, play
from ..errors import SchedsimError
from ..files.atomic import write_atomically
from ..simulation.trace import is_trace_name
from ..snapshots import Findings, examine, peak_of, read_snapshot, requests_of
from ..units import format_bytes, format_bytes_change, format_bytes_short
from .options.allocator_options import read_options
from .show import print_facts, print_json, print_table
from .shown.allocations import describe
from .shown.allocations import document as allocation_document

WORTH = 0.02
"""A setting that saves less than this share of the reserved bytes is not recommended."""


def explain_snapshot(
    path: str, top: int, confs: tuple[str, ...], as_json: bool, output: str | None
) -> int:
    """Print, or write, the findings about the snapshot at `path`."""
    findings = examine(read_snapshot(path), confs or None)
    if output is not None:
        write_atomically(output, json.dumps(findings.to_dict(), indent=1) + "\n")
    if as_json:
        print_json(findings.to_dict())
    else:
        _show(findings, top)
    return 0


def replay_snapshot(
    path: str, allocator: str | None, alloc_conf: str | None, as_json: bool, output: str | None
) -> int:
    """Print what `allocator` reserves for the requests of the snapshot at `path`."""
    if allocator is None or allocator == EXACT:
        raise SchedsimError(
            f"{path} holds requests, which an allocator serves",
            hint=f"schedsim simulate {path} --allocator cuda-caching",
        )
    if output is not None and is_trace_name(output):
        raise SchedsimError(
            f"-o {output}: the requests of a snapshot have no times, and so no trace",
            hint="-o FILE.json writes what the allocator reserves",
        )
    options = read_options(allocator, alloc_conf)
    snapshot = read_snapshot(path)
    found = play(requests_of(snapshot), allocator, **options)
    held = peak_of(snapshot, of="reserved").reserved_bytes
    document = {**allocation_document(found), "recorded_reserved_bytes": held}
    if output is not None:
        write_atomically(output, json.dumps(document, indent=1) + "\n")
    if as_json:
        print_json(document)
        return 0
    print_facts([*describe("device", found), ("recorded", f"{format_bytes(held)} reserved")])
    return 0


def _show(findings: Findings, top: int) -> None:
    peak, reserved = findings.peak, findings.reserved
    facts = [
        (
            "peak",
            f"{format_bytes(peak.requested_bytes)} asked for, "
            f"after event {peak.event + 1} of {peak.num_events}",
        ),
        *(
            (f"  {role}", f"{format_bytes_short(size):>10}")
            for role, size in findings.by_role.items()
            if size
        ),
        ("reserved", f"{format_bytes(reserved.reserved_bytes)} at the most"),
        ("  in blocks", f"{format_bytes_short(reserved.rounded_bytes):>10}"),
        ("  cached", f"{format_bytes_short(findings.cached_bytes):>10} in segments wholly free"),
        ("  stuck", f"{format_bytes_short(findings.stuck_bytes):>10} in gaps between blocks"),
        (
            "a plan could save",
            f"at most {format_bytes(findings.savable_bytes)}: activations but for the largest"
            if findings.savable_bytes
            else "nothing: no activations wait for a backward pass in this record",
        ),
    ]
    print_facts(facts)
    blocks = sum(group.num_blocks for group in findings.groups)
    click.echo(f"\nthe {blocks} blocks alive at the peak, by where they were asked for")
    rows = [
        (g.role, g.place, str(g.num_blocks), format_bytes_short(g.requested_bytes))
        for g in findings.groups[:top]
    ]
    print_table(("role", "asked for at", "blocks", "size"), rows, left=2)
    _show_settings(findings)


def _show_settings(findings: Findings) -> None:
    click.echo("\nthe same requests under other settings of the allocator (PYTORCH_ALLOC_CONF)")
    first = findings.settings[0].peak_reserved_bytes
    rows = [
        (
            (one.conf or "(none)") + (" (recorded)" if one is findings.settings[0] else ""),
            format_bytes_short(one.peak_reserved_bytes),
            format_bytes_change(one.peak_reserved_bytes - first),
        )
        for one in findings.settings
    ]
    print_table(("setting", "reserved", "change"), rows, left=1)
    recorded = findings.reserved.reserved_bytes
    if abs(first - recorded) > WORTH * recorded:
        click.echo(
            f"\nthe run itself reserved {format_bytes_short(recorded)}: these replays have no "
            "limit, and give no memory back to the device, as empty_cache() and "
            "garbage_collection_threshold do"
        )
    best = min(findings.settings, key=lambda one: one.peak_reserved_bytes)
    saved = first - best.peak_reserved_bytes
    if first and saved >= WORTH * first:
        share = f"{saved / first:.1%}".replace("%", " %")
        click.echo(f"\nPYTORCH_ALLOC_CONF={best.conf or repr('')} would reserve {share} less")
    else:
        click.echo("\nno setting tried would reserve much less")
