"""Names of streams and memory pools, and which stream belongs to which pool.

Compute streams are ``compute`` and ``compute:K`` (device K); copies run on ``d2h`` and ``h2d``,
messages on ``link:A-B``. Pools are ``device``, ``device:K`` and ``host``.
"""

from __future__ import annotations

COMPUTE = "compute"
DEVICE = "device"
HOST = "host"
D2H = "d2h"
H2D = "h2d"


def is_compute(stream: str) -> bool:
    """Whether `stream` is ``compute`` or ``compute:K``; other streams move bytes."""
    return stream == COMPUTE or stream.startswith(f"{COMPUTE}:")


def device_of(stream: str) -> str:
    """The pool of the workspace of ops on `stream`, and of their outputs unless the op says other.

    Examples
    --------
    >>> device_of("compute"), device_of("compute:2"), device_of("h2d")
    ('device', 'device:2', 'device')
    """
    if stream.startswith(f"{COMPUTE}:"):
        return DEVICE + stream.removeprefix(COMPUTE)
    return DEVICE


def compute_stream_of(pool: str) -> str | None:
    """The compute stream of the device whose memory `pool` is; ``None`` for the host's.

    Examples
    --------
    >>> compute_stream_of("device:2"), compute_stream_of("host")
    ('compute:2', None)
    """
    if pool == DEVICE or pool.startswith(f"{DEVICE}:"):
        return COMPUTE + pool.removeprefix(DEVICE)
    return None
