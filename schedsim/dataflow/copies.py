"""Typed copies of tensors between memories; only this module knows the names of copy ops.

A schedule that offloads is a sequence of op names like any other. The op that copies a tensor out
of the device's memory is named ``d2h:x``, the one that copies it back ``h2d:x``; memory levels
below host memory are numbered, with ``write3:x`` and ``read3:x`` for level 3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .op import Op
from .streams import D2H, H2D, HOST

HOST_LEVEL = 2
"""The level of host memory; the device is level 1."""

_NAME = re.compile(r"(d2h|h2d|write(\d+)|read(\d+)):(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of one tensor from the device to a lower memory level, or back.

    Parameters
    ----------
    tensor
        The tensor's name on the device.
    back
        Whether the copy goes to the device.
    level
        The memory level below the device: 2 is host memory.

    Examples
    --------
    >>> Copy("a4").name, Copy("a4", back=True).name, Copy("a4", level=3).name
    ('d2h:a4', 'h2d:a4', 'write3:a4')
    """

    tensor: str
    back: bool = False
    level: int = HOST_LEVEL

    @property
    def stream(self) -> str:
        """The copy stream that the op runs on."""
        return stream_of(self.level, back=self.back)

    @property
    def pool(self) -> str:
        """The memory pool of the level."""
        return pool_of_level(self.level)

    @property
    def name(self) -> str:
        """The name of the op in a schedule."""
        return f"{self.stream}:{self.tensor}"

    @property
    def kept_as(self) -> str:
        """The tensor's name in the memory of the level."""
        return f"{self.tensor}@{self.pool}"

    def op(self, size_bytes: int, time_s: float) -> Op:
        """The op that copies; a schedule may leave it out."""
        if self.back:
            return Op(
                self.name,
                phase="backward",
                time_s=time_s,
                reads=(self.kept_as,),
                writes={self.tensor: size_bytes},
                stream=self.stream,
                required=False,
            )
        return Op(
            self.name,
            time_s=time_s,
            reads=(self.tensor,),
            writes={self.kept_as: size_bytes},
            stream=self.stream,
            pools={self.kept_as: self.pool},
            required=False,
        )


def stream_of(level: int, *, back: bool) -> str:
    """The copy stream to memory level `level`, or back from it."""
    if level == HOST_LEVEL:
        return H2D if back else D2H
    return f"{'read' if back else 'write'}{level}"


def pool_of_level(level: int) -> str:
    """The memory pool of level `level`."""
    return HOST if level == HOST_LEVEL else f"level{level}"


def parse_copy(op_name: str) -> Copy | None:
    """The copy that an op with this name makes; ``None`` for any other op.

    Examples
    --------
    >>> parse_copy("h2d:a4")
    Copy(tensor='a4', back=True, level=2)
    >>> parse_copy("F4") is None
    True
    """
    match = _NAME.fullmatch(op_name)
    if match is None:
        return None
    stream, written, read, tensor = match.groups()
    level = int(written or read or HOST_LEVEL)
    return Copy(tensor, back=stream == H2D or read is not None, level=level)


def copies_in(op_names: Iterable[str], *, beside: Iterable[str] = ()) -> list[Copy]:
    """The copies among `op_names`, in order; `beside`, the workload's own ops, are skipped."""
    own = frozenset(beside)
    found = (parse_copy(name) for name in op_names if name not in own)
    return [copy for copy in found if copy is not None]
