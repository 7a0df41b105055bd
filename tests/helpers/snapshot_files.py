"""Memory snapshots as CUDA's allocator writes them, made by hand or by bookkeeping forward."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

from schedsim.snapshots.history import rounded

MIB = 2**20


FORWARD = [{"filename": "/me/net.py", "line": 7, "name": "forward"}]


OPTIMIZER = [{"filename": "/p/torch/optim/adamw.py", "line": 9, "name": "_init_group"}]


def block(address, size, live, frames=()):
    """A block as the file has it."""
    state = "active_allocated" if live else "inactive"
    return {
        "address": address,
        "size": rounded(size),
        "requested_size": size,
        "state": state,
        "frames": list(frames),
    }


def event(action, address, size, frames=(), stream=0):
    """An event as the file has it."""
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": stream,
        "frames": list(frames),
    }


def document(segments, events):
    """A snapshot of one device."""
    return {
        "segments": [
            {
                "device": 0,
                "address": address,
                "total_size": size,
                "stream": 0,
                "is_expandable": False,
                "blocks": blocks,
            }
            for address, size, blocks in segments
        ],
        "device_traces": [events],
        "allocator_settings": {"expandable_segments": False},
    }


def written(tmp_path: Path, content) -> Path:
    """The file of it."""
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(content))
    return path


def small(tmp_path):
    """A parameter from before, an activation that is freed, an optimizer's state that stays.

    Requested: 1000 before, then 1000 + 3000 = 4000, then 4000 + 500 = 4500, then 1500.
    """
    content = document(
        [
            (
                0,
                2 * MIB,
                [
                    block(0, 1000, True),
                    block(1024, 3000, False),
                    block(4096, 500, True, OPTIMIZER),
                ],
            )
        ],
        [
            event("alloc", 1024, 3000, FORWARD),
            event("alloc", 4096, 500, OPTIMIZER),
            event("free_requested", 1024, 3000),
            event("free_completed", 1024, 3000),
        ],
    )
    return written(tmp_path, content)


def recorded(seed, num_before, num_events):
    """A run with bookkeeping done forward: the file, and (requested, reserved) after each event."""
    rng = random.Random(seed)
    live: dict[int, int] = {}
    segments: dict[int, int] = {}
    at = 0
    for _ in range(num_before):
        size = rng.randrange(1, 5000)
        live[at], segments[at] = size, 8192
        at += 8192
    levels = [(sum(live.values()), sum(segments.values()))]
    events = []
    for _ in range(num_events):
        if live and rng.random() < 0.5:
            address = rng.choice(sorted(live))
            size = live.pop(address)
            events.append(event("free_completed", address, size))
            levels.append((sum(live.values()), sum(segments.values())))
            if rng.random() < 0.3:
                events.append(event("segment_free", address, segments.pop(address)))
                levels.append((sum(live.values()), sum(segments.values())))
        else:
            segments[at] = 8192
            events.append(event("segment_alloc", at, 8192))
            levels.append((sum(live.values()), sum(segments.values())))
            live[at] = rng.randrange(1, 5000)
            events.append(event("alloc", at, live[at], FORWARD))
            levels.append((sum(live.values()), sum(segments.values())))
            at += 8192
    left = [
        (a, size, [block(a, live[a], True)] if a in live else [block(a, size, False)])
        for a, size in segments.items()
    ]
    return document(left, events), levels
