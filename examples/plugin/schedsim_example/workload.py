"""A workload: a network that narrows and widens again."""

from __future__ import annotations

from schedsim import Chain


def hourglass(levels: int = 4, width_mb: float = 64.0, forward_ms: float = 1.0) -> Chain:
    """Stages whose tensors halve down to the middle of the network, and double after it.

    Parameters
    ----------
    levels
        How often they halve.
    width_mb
        Bytes of the input and of the widest outputs, in units of 10^6 bytes.
    forward_ms
        Time of the widest stage's forward, in milliseconds; the others take their share.
    """
    if levels < 1:
        raise ValueError(f"levels={levels} is not at least 1")
    depth = [*range(1, levels + 1), *reversed(range(levels))]
    shares = [0.5**d for d in depth]
    widest = int(width_mb * 1e6)
    outputs = [max(1, int(widest * share)) for share in shares]
    forward_s = [forward_ms * 1e-3 * share for share in shares]
    return Chain.from_arrays(
        f"hourglass-{levels}",
        widest,
        forward_s=forward_s,
        backward_s=[2 * t for t in forward_s],
        output_bytes=outputs,
        saved_bytes=[4 * size for size in outputs],
    )
