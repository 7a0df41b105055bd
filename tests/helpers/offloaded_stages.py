"""Two stages with copies over a link, for tests of the engine by hand."""

from __future__ import annotations

from schedsim import Chain, Graph, Schedule, Stage
from schedsim.plans.links import Link, with_copies


def two_stages() -> Chain:
    """Forward 1 s, backward 2 s, activations of 4 bytes and bundles of 10, copies of 1 s each."""
    return Chain("two", 4, (Stage("s0", 1, 2, 4, 10), Stage("s1", 1, 2, 4, 10)))


def offloaded(names: str, **more) -> tuple[Graph, Schedule]:
    """The two stages with copies at 4 bytes a second, and a schedule of them."""
    return with_copies(two_stages(), d2h=Link(4), h2d=Link(4), **more), Schedule.from_names(
        names.split()
    )
