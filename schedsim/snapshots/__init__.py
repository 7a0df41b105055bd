"""Memory snapshots of PyTorch's CUDA allocator: what holds the peak, and what would help.

``torch.cuda.memory._dump_snapshot`` writes such files; reading them does not need torch.
"""

from __future__ import annotations

from .examination import Findings, examine
from .history import AllocatedBlock, Moment, peak_of
from .reading import Snapshot, read_snapshot
from .request_replay import Replayed, replays, requests_of

__all__ = [
    "AllocatedBlock",
    "Findings",
    "Moment",
    "Replayed",
    "Snapshot",
    "examine",
    "peak_of",
    "read_snapshot",
    "replays",
    "requests_of",
]
