"""How much room the groups of a compiled step may take: larger ones are quicker."""

from __future__ import annotations

from enum import Enum, auto


class GroupSize(Enum):
    """Which ops become one group, from the largest to the smallest.

    Attributes
    ----------
    LARGE
        Ops are merged wherever a tensor between them vanishes.
    MEDIUM
        A group that is merged needs no more room for its inputs and outputs than the op that needs
        most and stays a kernel, as a convolution: no group sets the least budget then.
    SMALL
        A group that is merged needs no more room than one of its parts.
    """

    LARGE = auto()
    MEDIUM = auto()
    SMALL = auto()

    @property
    def smaller(self) -> tuple[GroupSize, ...]:
        """The sizes below this one, the larger first."""
        sizes = tuple(GroupSize)
        return sizes[sizes.index(self) + 1 :]
