"""Times and workspaces of ops, measured on a device of this machine."""

from __future__ import annotations

import math
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch

from schedsim.errors import SchedsimError

from ..capture.program import COPIES_OF_STORAGES, Call, Program, Value, map_refs, refs
from ..capture.to_graph import op_calls, tensor_names
from ..measure.allocator import allocations
from .bags import bag_contents
from .cache import ProfileCache, cached_note, is_measure
from .lazy_bits import lazy_bits
from .lent_tensors import Lenders
from .signature import signature
from .table import Costs


class Measurable(Protocol):
    """An object with a program, and the kind of device whose kernels the program calls."""

    @property
    def program(self) -> Program: ...

    @property
    def backend(self) -> str: ...


class Measurement(NamedTuple):
    """The measured costs of one op.

    Attributes
    ----------
    time_s
        Median of the timed runs.
    workspace_bytes
        Most bytes that the allocator held during a run, beyond the outputs.
    output_bytes
        Storage of each output; -1 for an output that is no tensor.
    spread
        Distance of the quartiles of the timed runs, as a share of their median.
    measured_at_s
        Time of the measurement, in seconds of the machine's clock.
    """

    time_s: float
    workspace_bytes: int
    output_bytes: tuple[int, ...]
    spread: float
    measured_at_s: float


def measured_costs(
    captured: Measurable,
    device: str | torch.device | None = None,
    *,
    use_cache: bool = True,
    target_s: float = 0.02,
) -> Costs:
    """Times and workspaces of the ops of `captured`, each distinct op and shape run by itself.

    Times are the median of at least five warm runs (three where a run takes seconds); CUDA runs are
    timed by events. Workspaces come from the allocator's own record of one run. An op gets random
    numbers, random indices where they are rows of a table or places of a pool, bags that
    all have entries, and zeros for other integers.

    Parameters
    ----------
    device
        Device to measure on; it must be of the kind whose kernels the graph calls.
    use_cache
        Whether to read entries from the cache folder; new entries are stored there in any case.
    target_s
        About the seconds to spend on each distinct op.

    Returns
    -------
    Costs

    Raises
    ------
    SchedsimError
        The device is of another kind, or is not available.

    Notes
    -----
    Memory: the inputs and outputs of one op at a time; inputs of the step that are `lent` are not
    made again.
    """
    place = torch.device(device or captured.backend)
    if place.type != captured.backend:
        raise SchedsimError(
            f"the graph holds {captured.backend} kernels, which cannot be measured on {place.type}",
            hint="roofline_costs estimates them for a device that is not here",
        )
    if place.type == "cuda" and not torch.cuda.is_available():
        raise SchedsimError("there is no CUDA device here", hint="use roofline_costs")
    program = captured.program
    cache = ProfileCache(environment(place))
    kept = use_cache or target_s > 0  # times taken in no time at all are of no use to others
    cached: dict[str, Measurement] = {}
    known: dict[str, Measurement] = {}
    names = tensor_names(program)
    times: dict[str, float] = {}
    workspaces: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for i in op_calls(program):
        call = program.calls[i]
        if i == program.seed:
            times[call.name], workspaces[call.name] = 0.0, 0
            continue
        key = signature(program, call)
        if key not in known and use_cache:
            earlier = _entry(cache.entries.get(key), len(call.outputs))
            if earlier is not None:
                known[key] = cached[key] = earlier
        if key not in known:
            known[key] = measure_call(program, call, place, target_s)
            if kept:
                cache.entries[key] = list(known[key])
        found = known[key]
        times[call.name], workspaces[call.name] = found.time_s, found.workspace_bytes
        # An op that copies the whole storage under an argument cannot be sized here: the made-up
        # argument has no larger storage than its shape.
        seen = call.target not in COPIES_OF_STORAGES
        for value, size in zip(call.outputs, found.output_bytes, strict=True):
            if value >= 0 and size >= 0 and seen:
                storage = program.values[value].storage
                if program.storages[storage].size_bytes not in (0, size):
                    sizes[names[storage]] = size
    if kept:
        cache.save()
    notes = (_note(cached, len(known)),) if cached else ()
    return Costs(times, workspaces, f"measured on {environment(place)['device']}", sizes, notes)


def _entry(kept: Any, num_outputs: int) -> Measurement | None:
    """The cached measurement of an op; ``None`` if there is none, or its format is unknown."""
    if not isinstance(kept, list) or len(kept) != len(Measurement._fields):
        return None
    time_s, workspace_bytes, output_bytes, spread, measured_at_s = kept
    if not all(map(is_measure, (time_s, workspace_bytes, spread, measured_at_s))):
        return None
    if not isinstance(output_bytes, list) or len(output_bytes) != num_outputs:
        return None
    whole = (workspace_bytes, *(0 if size == -1 else size for size in output_bytes))
    if not all(isinstance(size, int) and is_measure(size) for size in whole):
        return None
    return Measurement(time_s, workspace_bytes, tuple(output_bytes), spread, measured_at_s)


def _note(cached: Mapping[str, Measurement], num_kinds: int) -> str:
    """The age of the oldest times that were not measured now, and their spread."""
    age_s = max(0.0, time.time() - min(one.measured_at_s for one in cached.values()))
    spread = statistics.median(one.spread for one in cached.values())
    return cached_note(f"times of {len(cached)} of {num_kinds} kinds of op", age_s, spread)


def environment(device: torch.device) -> dict[str, str]:
    """The environment on which times on `device` depend."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        return {"device": name, "torch": torch.__version__, "cuda": str(torch.version.cuda)}
    return {
        "device": f"{platform.machine()} {_cpu_name()}".strip(),
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            lines = [line for line in file if line.startswith(("model name", "CPU part"))]
    except OSError:
        return platform.processor()
    return lines[0].partition(":")[2].strip() if lines else platform.processor()


def measure_call(
    program: Program, call: Call, device: torch.device, target_s: float
) -> Measurement:
    """Run `call` by itself on made-up inputs."""
    devices = [device] if device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices):
        run = _made_up_run(program, call, device)
        outputs = run()
        tensors = outputs if call.is_tuple else (outputs,)
        sizes = tuple(
            one.untyped_storage().nbytes() if isinstance(one, torch.Tensor) else -1
            for one in tensors[: len(call.outputs)]
        )
        if not call.outputs:
            sizes = ()
        del outputs, tensors
        cuda = device.type == "cuda"
        workspace_bytes = _cuda_workspace(run, device) if cuda else _cpu_workspace(run)
        times = _cuda_times(run, device, target_s) if cuda else _cpu_times(run, target_s)
    time_s = statistics.median(times)
    low, _, high = statistics.quantiles(times, n=4)
    spread = (high - low) / time_s if time_s > 0 else 0.0
    return Measurement(time_s, workspace_bytes, sizes, spread, time.time())


def _made_up_run(program: Program, call: Call, device: torch.device) -> Callable[[], Any]:
    """`call` on made-up inputs."""
    make = made_up_tensors(program, call, device)
    function = getattr(call.target, "probe", call.target)  # a function that checks runs unchecked
    args, kwargs = map_refs(call.args, make), map_refs(call.kwargs, make)
    return lambda: function(*args, **kwargs)


def made_up_tensors(
    program: Program, call: Call, device: torch.device
) -> Callable[[int], torch.Tensor]:
    """A function from a value that `call` reads to a tensor of the value's form on `device`."""
    bound = _index_bound(program, call)
    numbers: dict[int, torch.Tensor | list[int]] = {**bag_contents(program, call)}
    numbers |= _packed_rows(program, call) | _longest(program, call)
    states: dict[int, torch.Tensor] = {}
    packet = getattr(call.target, "overloadpacket", None)
    has_pivots, is_definite = packet in _PIVOTED, packet in _OF_DEFINITE
    lenders = Lenders(program, call)

    def make(value: int) -> torch.Tensor:
        v = program.values[value]
        if _is_random_state(program, v):
            if value not in states:
                states.update(_outputs_of(program, program.calls[v.call], device))
            return states[value]
        if not (has_pivots or is_definite or value in numbers):
            lent = lenders.take(value)
            if lent is not None:
                return lazy_bits(program, value).set_on(lent)
        place = device if v.device.type == device.type else v.device
        span = 1 + sum((n - 1) * s for n, s in zip(v.shape, v.stride, strict=True))
        made = torch.empty(span if all(v.shape) else 0, dtype=v.dtype, device=place)
        # Away from zero and below one: nothing overflows, and no number is so small that it is
        # slow.
        if v.dtype.is_floating_point:
            made.uniform_(0.1, 0.9)
        elif value not in numbers:
            made.random_(0, bound) if bound and v.dtype is torch.int64 else made.zero_()
        found = made.as_strided(v.shape, v.stride)
        if has_pivots and v.dtype is torch.int32:  # in each matrix a row is exchanged with itself
            found.copy_(torch.arange(v.shape[-1]) + 1)
        if is_definite:  # others are no matrix that it has a factor of, and it raises
            found.diagonal(dim1=-2, dim2=-1).add_(v.shape[-1])
        if value in numbers:
            found.copy_(torch.as_tensor(numbers[value]))
        return lazy_bits(program, value).set_on(found)

    return make


def _is_random_state(program: Program, value: Value) -> bool:
    """Whether `value` says to an attention's backward what its dropout has drawn.

    On a CUDA device kernels read some of these numbers on the host, which a trace does not tell: at
    the address of another tensor they end the process.
    """
    if value.call < 0 or value.dtype not in (torch.int64, torch.uint64):
        return False
    maker = program.calls[value.call]
    return "_attention" in str(maker.target) and math.prod(value.shape) <= 2


def _outputs_of(program: Program, call: Call, device: torch.device) -> dict[int, torch.Tensor]:
    """What a run of `call` on made-up inputs gives, by value."""
    rows = zip(call.outputs, _made_up_run(program, call, device)(), strict=False)
    return {v: one for v, one in rows if _is_random_state(program, program.values[v])}


# torch 2.15 has no such op any longer; `torch.linalg.cholesky` is another.
_OF_DEFINITE = tuple(it for it in (getattr(torch.ops.aten, "cholesky", None),) if it)
_PIVOTED = (
    torch.ops.aten.linalg_lu_solve,
    torch.ops.aten.lu_unpack,
    torch.ops.aten.linalg_ldl_solve,
)


def _packed_rows(program: Program, call: Call) -> dict[int, list[int]]:
    """The numbers of rows at each time, by value, where `call` reads a packed sequence.

    Rows only become fewer with time, and are all those of the sequence together.
    """
    name = str(getattr(call.target, "_name", ""))
    first = {"schedsim::recurrent": 0, "schedsim::recurrent_backward": 3}.get(name)
    if first is None:
        return {}
    x, sizes, states = call.args[first : first + 3]
    if sizes is None:
        return {}
    [sizes_of], [x_of], [state, *_] = list(refs(sizes)), list(refs(x)), list(refs(states))
    num_rows, num_times = program.values[x_of].shape[0], program.values[sizes_of].shape[0]
    most = program.values[state].shape[1]
    if num_times < 2:
        return {sizes_of: [num_rows] * num_times}
    each, more = divmod(max(num_rows - most, 0), num_times - 1)
    return {sizes_of: [most, *(each + (k < more) for k in range(num_times - 1))]}


def _longest(program: Program, call: Call) -> dict[int, list[int]]:
    """The lengths, by value, with which a `call` of the CTC loss takes the most memory."""
    name = str(getattr(call.target, "_name", ""))
    first = {"schedsim::ctc_loss": 0, "schedsim::ctc_loss_backward": 1}.get(name)
    if first is None:
        return {}
    log_probs, targets, times, lengths = list(refs(call.args[first : first + 4]))
    num_times, batch, _ = program.values[log_probs].shape
    *padded, longest = program.values[targets].shape
    # Without padding, all targets together have this length.
    each = [longest] * batch if padded else [longest] + [0] * (batch - 1)
    return {times: [num_times] * batch, lengths: each}


def _index_bound(program: Program, call: Call) -> int:
    """One more than the largest valid index in the op's index tensors; 0 if unknown.

    Indices must differ: where all are equal, kernels that add to indexed entries wait for each
    other.
    """
    aten = torch.ops.aten
    packet = getattr(call.target, "overloadpacket", None)
    shapes = [program.values[v].shape for v in refs(call.args)]
    if packet is aten.embedding:
        return shapes[0][0]
    if packet is aten.embedding_dense_backward:
        return int(call.args[2])
    if packet is aten.max_pool2d_with_indices_backward:
        return math.prod(shapes[1][-2:])
    return 0


def _cpu_times(run: Callable[[], Any], target_s: float) -> list[float]:
    # On one thread, time that other processes take of the cores does not count.
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    times: list[float] = []
    begun = time.perf_counter()
    while not _is_enough(len(times), time.perf_counter() - begun, target_s):
        start = clock()
        run()
        times.append(clock() - start)
    return times


def _is_enough(num_runs: int, spent_s: float, target_s: float) -> bool:
    """At least five runs, or three of an op that takes seconds; at most a thousand."""
    if num_runs < 5:
        return num_runs >= 3 and spent_s > max(50 * target_s, 1.0)
    return spent_s >= target_s or num_runs >= 1000


def _cuda_times(run: Callable[[], Any], device: torch.device, target_s: float) -> list[float]:
    make_event: Callable[..., Any] = torch.cuda.Event
    run()
    torch.cuda.synchronize(device)
    times: list[float] = []
    begun = time.perf_counter()
    while not _is_enough(len(times), time.perf_counter() - begun, target_s):
        # Started in batches, so that the time between two events is the device's, not Python's.
        pairs = []
        for _ in range(5):
            events: list[Any] = [make_event(enable_timing=True) for _ in range(2)]
            events[0].record()
            run()
            events[1].record()
            pairs.append(events)
        torch.cuda.synchronize(device)
        times += [start.elapsed_time(stop) / 1e3 for start, stop in pairs]
    return times


def _cpu_workspace(run: Callable[[], Any]) -> int:
    """By the allocator's record of one run: the highest balance, less the balance at the end."""
    kept: list[Any] = []
    changes = allocations(lambda: kept.append(run()))
    balance = peak = 0
    for change in changes:
        balance += change
        peak = max(peak, balance)
    return max(peak - max(balance, 0), 0)


def _cuda_workspace(run: Callable[[], Any], device: torch.device) -> int:
    def requested(which: str) -> int:
        return int(torch.cuda.memory_stats(device).get(f"requested_bytes.all.{which}", 0))

    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    kept = run()
    torch.cuda.synchronize(device)
    workspace = requested("peak") - requested("current")
    del kept
    return max(workspace, 0)
