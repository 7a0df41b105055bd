"""Options of ``schedsim cluster`` by the names of the settings that they give."""

from __future__ import annotations

_FLAGS = {
    "num_micro_batches": "--micro-batches",
    "num_chunks": "--chunks",
    "zero_stage": "--zero",
    "compiled": "--compile",
    "compiled_loss": "--compile-loss",
}


def flag_of(name: str) -> str:
    """The option of the command line that gives the setting or degree `name`.

    Examples
    --------
    >>> flag_of("num_chunks"), flag_of("loss_chunks")
    ('--chunks', '--loss-chunks')
    """
    return _FLAGS.get(name) or f"--{name.replace('_', '-')}"
