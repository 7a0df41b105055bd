"""Allocators: the bytes that a schedule reserves on the device, beyond what its tensors need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..checks.checked_arguments import checked
from ..dataflow.streams import DEVICE
from ..errors import SchedsimError
from .allocation import Allocation, summarize
from .caching import CachingOptions
from .recorded_requests import recorded_requests
from .requests import Requests, requests_of

if TYPE_CHECKING:
    from ..simulation.result import Simulation

__all__ = ["ALLOCATORS", "EXACT", "Allocation", "CachingOptions", "Requests", "allocate", "play"]

EXACT = "exact"
"""No allocator: the bytes of tensors and workspaces, as the simulator counts them."""

ALLOCATORS = ("cuda-caching", "best-fit", "first-fit")


@checked
def allocate(
    simulation: Simulation,
    allocator: str = "cuda-caching",
    *,
    pool: str = DEVICE,
    capacity_bytes: int | None = None,
    num_steps: int = 1,
    **options: Any,
) -> Allocation:
    """The memory that `allocator` reserves while the simulated schedule runs.

    Parameters
    ----------
    simulation
        Result of `schedsim.simulate`.
    allocator
        ``"cuda-caching"``: PyTorch's allocator, see `CachingOptions`. ``"best-fit"``,
        ``"first-fit"``: one range of addresses that grows at its end; a request takes the smallest,
        or the first, gap that is large enough.
    pool
        The memory pool: ``"device"``, or the pool of one of several devices.
    capacity_bytes
        Size of the device; without limit by default.
    num_steps
        How often the schedule runs, each step with the cache that the step before it left.
    **options
        Fields of `CachingOptions`; for ``"best-fit"`` and ``"first-fit"``, `alignment_bytes` (512).

    Returns
    -------
    Allocation

    Raises
    ------
    SchedsimError
        The allocator is not known, or an option is wrong.

    Notes
    -----
    For n requests O(n log n), plus moves in sorted lists of at most n times the number of free
    blocks; 100,000 requests and releases take some hundredths of a second.

    Examples
    --------
    Two tensors of 3 MiB share a segment of 20 MiB:

    >>> import schedsim
    >>> MiB = 1 << 20
    >>> chain = schedsim.Chain.from_arrays("one", 3 * MiB, forward_s=[1], backward_s=[1],
    ...                                    output_bytes=[3 * MiB], saved_bytes=[3 * MiB])
    >>> simulation = schedsim.simulate(chain, schedsim.Schedule.store_all(chain))
    >>> simulation.peak_bytes // MiB, schedsim.allocate(simulation).peak_reserved_bytes // MiB
    (9, 20)
    """
    requests = requests_of_steps(simulation, num_steps, pool)
    return play(requests, allocator, capacity_bytes=capacity_bytes, **options)


def requests_of_steps(simulation: Simulation, num_steps: int = 1, pool: str = DEVICE) -> Requests:
    """The requests that `allocate` plays: recorded ones, or those of the simulator.

    O(n) for n requests.
    """
    if num_steps < 1:
        raise SchedsimError(f"num_steps {num_steps} is not at least 1")
    recorded = simulation._graph.recorded
    if recorded is not None and pool == DEVICE and simulation._graph.one_stream:
        return recorded_requests(simulation, recorded, num_steps)
    requests = requests_of(simulation, pool)
    return requests.repeated(num_steps) if num_steps > 1 else requests


def play(
    requests: Requests,
    allocator: str = "cuda-caching",
    *,
    capacity_bytes: int | None = None,
    **options: Any,
) -> Allocation:
    """Like `allocate`, for requests and releases in any order."""
    from ._cuda_segments import UNLIMITED

    capacity = UNLIMITED if capacity_bytes is None else capacity_bytes
    check_allocator(allocator)
    if allocator == "cuda-caching":
        from ._blocks import make_blocks
        from ._cuda_segments import run_caching

        chosen = _caching_options(options)
        result = run_caching(
            requests.items,
            chosen.block_bytes(requests.item_bytes),
            requests.item_stream,
            make_blocks(requests.items.size, 2 * requests.num_streams),
            capacity,
            UNLIMITED if chosen.max_split_bytes is None else chosen.max_split_bytes,
            chosen.expandable_segments,
            requests.empty_before,
        )
        result[1][:, : requests.empty_before] = 0  # what is given back does not count
    else:
        from ._arena import run_arena

        alignment = _alignment(options)
        blocks = -(-requests.item_bytes // alignment) * alignment
        result = run_arena(requests.items, blocks, allocator == "best-fit", capacity)
    played, series, addresses, num_emptied = result
    return summarize(
        allocator, options, requests, played, series, addresses, num_emptied, capacity_bytes
    )


def check_allocator(name: str) -> None:
    """Raise `SchedsimError` if there is no allocator called `name`."""
    if name not in ALLOCATORS:
        raise SchedsimError(
            f"unknown allocator {name!r}", hint=f"one of {', '.join((EXACT, *ALLOCATORS))}"
        )


def _caching_options(options: dict[str, Any]) -> CachingOptions:
    try:
        return CachingOptions(**options)
    except TypeError:
        known = set(CachingOptions.__dataclass_fields__)
        name = next(iter(sorted(set(options) - known)), "")
        raise SchedsimError(
            f"allocator cuda-caching has no option {name!r}", hint=f"it has {', '.join(known)}"
        ) from None


def _alignment(options: dict[str, Any]) -> int:
    other = sorted(set(options) - {"alignment_bytes"})
    if other:
        raise SchedsimError(f"an arena has no option {other[0]!r}", hint="it has alignment_bytes")
    alignment = int(options.get("alignment_bytes", 512))
    if alignment < 1:
        raise SchedsimError(f"alignment_bytes {alignment} is not at least 1")
    return alignment
