"""The fastest step that fits: degrees, micro-batches, order and recomputation chosen together.

Candidates that are estimated to be the fastest are tried first. A candidate whose lower bound on
time is not below the best step found is left out; if none is left, that step is the fastest of the
whole space in this model. In each candidate, every pipeline rank recomputes as little as it can to
fit: the first entry of `RecomputeLadder` that does. A faster stage delays nothing, and no later
entry is faster than this one would be if its copies to the host cost nothing. So the step without
the cost of copies bounds every other choice from the same list; where copies wait, the choice
without offloading is simulated too. Ranks of a long pipeline skip an entry that seems too large
after it was tried on another rank; where one was skipped, the bound of the candidate stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from ..checks.checked_arguments import checked
from ..checks.cluster_flags import flag_of
from ..errors import SchedsimError
from ..units import format_bytes_short, parse_bytes
from ..workloads.architecture import Architecture
from ..workloads.architectures_by_name import get_architecture
from .degrees import Degrees
from .fabric import Fabric, check_network, get_fabric
from .facade import of_model, split_options
from .kept_names import without_host
from .launch_settings import check_framework, has_order, plain_policies
from .narrowed_space import narrowings
from .prediction import ClusterPrediction, check_device
from .rank_memory import (
    RankMemory,
    first_micro_batch_bytes,
    rank_memory,
    representative_micro_batches,
)
from .rank_time import step_time
from .recompute_ladder import PLAIN, RecomputeLadder, setting
from .search_space import SearchSpace, StepSettings, spread
from .stages import rank_stages, split_stages
from .step_bounds import StepBounds
from .training import Training

EFFORT_LAYERS = 1000
"""Layers x micro-batches that are simulated for one unit of effort: about a second on one core.

Work is counted, not timed, so that the same search ends with the same result everywhere.
"""

MOST_TRIED = 8
"""Each rank of a pipeline of at most so many tries every entry that may fit it by its bound."""

ROOM = 5
"""Candidates come first that fit with a fifth of the budget left for what no bound counts.

Only the order of the search depends on it.
"""


@dataclass(frozen=True)
class ClusterChoice:
    """The result of a search.

    Attributes
    ----------
    best
        The fastest step found that fits; ``None`` where none does.
    runners_up
        Other steps that fit, fastest first, one for each choice of degrees.
    lower_bound_s
        No candidate is faster, in this model; equal to the time of `best` where that is proven.
    num_candidates, num_simulated
        Number of candidates in the space, and of those simulated.
    binds
        What keeps the step from being faster, in words.
    least_bytes
        If nothing fits, the least bytes found that a step reserves: with such a budget, one fits.
    narrowed
        What settings that were given leave of the space, a line for each that takes something out.
    """

    best: ClusterPrediction | None
    runners_up: tuple[ClusterPrediction, ...]
    lower_bound_s: float
    num_candidates: int
    num_simulated: int
    binds: str
    least_bytes: int | None
    narrowed: tuple[str, ...] = ()

    @property
    def optimal(self) -> bool:
        """Whether no candidate of the space is faster."""
        return self.best is not None and self.best.step_s <= self.lower_bound_s * (1 + 1e-12)


@dataclass(frozen=True, slots=True)
class _Fitted:
    """Settings of a candidate that fit, their seconds, and a lower bound on all that fit."""

    step_s: float
    bound_s: float
    training: Training


@dataclass(frozen=True, slots=True)
class _Leanest:
    """Settings of a candidate that reserve so many bytes."""

    reserved_bytes: int
    candidate: StepSettings
    training: Training


class _Search:
    """The state of one search: sizes and bounds computed so far."""

    def __init__(
        self,
        model: Architecture,
        fabric: Fabric,
        budget_bytes: int,
        *,
        keep: bool,
        offload: bool,
        host_bytes: int | None,
        plain: tuple[str, ...] | None,
    ) -> None:
        self.model = model
        self.fabric = fabric
        self.budget_bytes = budget_bytes
        self.host_bytes = host_bytes
        self.bounds = StepBounds(model, fabric)
        self.ladder = RecomputeLadder(
            self.bounds,
            keep=keep and plain is None,
            offload=offload and plain is None,
            plain=PLAIN if plain is None else plain,
        )
        self.uniform = plain is not None  # frameworks have one setting for all ranks
        self.skipped = False  # whether the last choice left an entry out that may fit
        self._beyond: dict[str, int] = {}  # entry -> reserved bytes beyond the bound, of some rank
        self._memories: dict[tuple[Degrees, Training, int], RankMemory] = {}
        self.num_layers = 0  # of all simulations so far, once for each micro-batch: the work

    def fitted(
        self, candidate: StepSettings, best_s: float, *, offload: bool = True
    ) -> Training | None:
        """Settings with the least recomputation that fits on each rank.

        ``None`` if none fits, or if none that may fit takes less than `best_s` seconds.
        """
        degrees, training = candidate.degrees, candidate.training
        self.skipped = False
        self._beyond.clear()
        stages = split_stages(self.model, degrees, training)
        sizes = [
            max(len(stage.layers) for stage in rank_stages(stages, degrees, rank))
            for rank in range(degrees.pipeline)
        ]
        # The two ends first: if any rank does not fit, one of the ends does not fit.
        order = sorted(range(degrees.pipeline), key=lambda k: (min(k, degrees.pipeline - 1 - k), k))
        if self.uniform:
            return self._fitted_alike(candidate, best_s, max(sizes), order)
        found = list(candidate.least)
        for rank in order:
            # Entries before it are tried: what the allocator reserves need not fall with each.
            entries = entries_of(self.ladder, candidate, sizes[rank], offload=offload)
            for recompute in entries:
                if recompute != entries[-1] and self._seems_too_large(candidate, rank, recompute):
                    self.skipped = True
                    continue
                found[rank] = recompute
                known = recompute in ("none", candidate.least[rank])
                if not known and self._least_s(candidate, found) >= best_s:
                    return None
                if self._fits(candidate, rank, recompute):
                    break
            else:
                return None
        return replace(training, recompute=_of_ranks(found))

    def _fitted_alike(
        self, candidate: StepSettings, best_s: float, num_layers: int, order: list[int]
    ) -> Training | None:
        """As `fitted`, with one recomputation for all ranks."""
        for recompute in entries_of(self.ladder, candidate, num_layers):
            every = [recompute] * len(order)
            if recompute != "none" and self._least_s(candidate, every) >= best_s:
                return None
            if all(self._fits(candidate, rank, recompute) for rank in order):
                return replace(candidate.training, recompute=recompute)
        return None

    def fastest(self, candidate: StepSettings, best_s: float, least_s: float) -> _Fitted | None:
        """The fastest settings found of a candidate that takes `least_s` if nothing is recomputed.

        ``None`` as in `fitted`.
        """
        training = self.fitted(candidate, best_s)
        skipped = self.skipped
        if training is None:
            return None
        if training.recompute == "none":
            return _Fitted(least_s, least_s, training)
        step_s = bound_s = self.step_s(candidate, training)
        free = without_host(training.recompute)
        if free == training.recompute:
            return _Fitted(step_s, candidate.bound_s if skipped else step_s, training)
        free = _of_ranks(free.split("/"))
        bound_s = least_s
        if free != "none":
            bound_s = self.step_s(candidate, replace(training, recompute=free))
        if bound_s < step_s:  # copies wait, or are waited for
            other = self.fitted(candidate, step_s, offload=False)
            other_s = step_s if other is None else self.step_s(candidate, other)
            if other is not None and other_s < step_s:
                step_s, training = other_s, other
        self.skipped = skipped
        least_s = candidate.bound_s if skipped else bound_s
        return _Fitted(step_s, min(least_s, bound_s, step_s), training)

    def is_slower(self, candidate: StepSettings, best_s: float) -> bool:
        """Whether it takes `best_s` or more with what its memory bound demands, simulated.

        A single simulation of time tells it; whether all ranks fit takes many.
        """
        demanded = _demanded(candidate)
        return demanded.recompute != "none" and self.step_s(candidate, demanded) >= best_s

    def bounds_of(self, untried: list[StepSettings], best_s: float, effort: int) -> list[float]:
        """Lower bounds of candidates that were not tried, which may be faster than `best_s`.

        Those with the lowest bounds are simulated once each, with the least recomputation that
        they need: a quarter of the effort.
        """
        found, most = [], EFFORT_LAYERS * effort // 4 + self.num_layers
        for number, candidate in enumerate(sorted(untried, key=lambda one: one.bound_s)):
            if candidate.bound_s >= best_s:
                break
            bound_s = candidate.bound_s
            if best_s < inf and number < effort // 4 and self.num_layers < most:
                bound_s = max(bound_s, self.step_s(candidate, _demanded(candidate)))
            if bound_s < best_s:
                found.append(bound_s)
        return found

    def bounded(self, candidate: StepSettings) -> StepSettings | None:
        """`candidate` with the least time that its memory bound allows; ``None`` if none fits.

        Its estimate is that time with less memory: `ROOM`.
        """
        degrees, training = candidate.degrees, candidate.training
        less_bytes = self.budget_bytes - self.budget_bytes // ROOM
        stages = split_stages(self.model, degrees, training)
        chosen: list[str] = []
        roomy: list[str] | None = []
        for rank in range(degrees.pipeline):
            num_layers = max(len(stage.layers) for stage in rank_stages(stages, degrees, rank))
            entries = entries_of(self.ladder, candidate, num_layers)
            needs = [
                self.bounds.memory_bytes(degrees, training, rank, recompute)
                for recompute in entries
            ]
            place = _first_within(needs, self.budget_bytes)
            if place is None:
                return None
            chosen.append(entries[place])
            place = _first_within(needs, less_bytes)
            roomy = None if roomy is None or place is None else [*roomy, entries[place]]
        bound_s = self._least_s(candidate, chosen)
        estimate_s = inf if roomy is None else self._least_s(candidate, roomy)
        return replace(candidate, bound_s=bound_s, estimate_s=estimate_s, least=tuple(chosen))

    def step_s(self, candidate: StepSettings, training: Training) -> float:
        """Seconds of the step of `candidate` with the recomputation of `training`."""
        degrees = candidate.degrees
        if self.bounds.is_exact(degrees, training):
            return self.bounds.time_s(degrees, training)
        micro = min(5, training.micro_batches(degrees)) if degrees.pipeline == 1 else 1
        self.num_layers += micro * self.model.num_layers
        return step_time(self.model, degrees, training, self.fabric).step_s

    def prediction(self, candidate: StepSettings, training: Training) -> ClusterPrediction:
        """What `predict` says of settings that were found to fit, whose ranks were simulated."""
        degrees = candidate.degrees
        ranks = tuple(
            self._memories[degrees, replace(training, recompute=recompute), rank]
            for rank, recompute in enumerate(_by_rank(training, degrees))
        )
        time = step_time(self.model, degrees, training, self.fabric)
        return ClusterPrediction(self.model, degrees, training, self.fabric, ranks, time)

    def _least_s(self, candidate: StepSettings, every: list[str]) -> float:
        """A lower bound on the seconds of `candidate` with these or later entries on its ranks."""
        recompute = without_host("/".join(every))
        return self.bounds.time_s(candidate.degrees, candidate.training, recompute)

    def _seems_too_large(self, candidate: StepSettings, rank: int, recompute: str) -> bool:
        """Whether a long pipeline is spared an entry that was tried on another rank.

        Ranks differ little, so that what the allocator reserves beyond the bound does too.
        """
        if candidate.degrees.pipeline <= MOST_TRIED or recompute not in self._beyond:
            return False
        needed = self.bounds.memory_bytes(candidate.degrees, candidate.training, rank, recompute)
        return needed + self._beyond[recompute] > self.budget_bytes

    def _fits(self, candidate: StepSettings, rank: int, recompute: str) -> bool:
        degrees = candidate.degrees
        training = replace(candidate.training, recompute=recompute)
        needed = self.bounds.memory_bytes(degrees, candidate.training, rank, recompute)
        layers = -(-self.model.num_layers // degrees.pipeline)
        begins_alike = degrees.pipeline == 1 and training.state == "fsdp2"
        if needed <= self.budget_bytes and begins_alike and training.zero_stage == 3:
            self.num_layers += layers
            needed = first_micro_batch_bytes(self.model, degrees, training, self.fabric)
        if needed <= self.budget_bytes:
            memory = self._memory(candidate, rank, recompute)
            self._beyond[recompute] = memory.reserved_bytes - needed
            needed = memory.reserved_bytes
            if self.host_bytes is not None and memory.host_bytes > self.host_bytes:
                return False
        return needed <= self.budget_bytes

    def leanest(self, every: Sequence[StepSettings], effort: int) -> _Leanest:
        """Of the steps of `every` that recompute the most, one that reserves the least bytes.

        Those that are least by their bound come first, at most `effort` of them; a step within the
        budget ends the search.
        """
        rows = [(*self._most_recomputed(one), one) for one in every]
        rows.sort(key=lambda row: row[0])
        found: _Leanest | None = None
        for bound_bytes, training, candidate in rows[:effort]:
            if found is not None and (
                bound_bytes >= found.reserved_bytes or found.reserved_bytes <= self.budget_bytes
            ):
                break
            size = max(
                self._memory(candidate, rank, recompute).reserved_bytes
                for rank, recompute in enumerate(_by_rank(training, candidate.degrees))
            )
            if found is None or size < found.reserved_bytes:
                found = _Leanest(size, candidate, training)
        assert found is not None
        return found

    def _most_recomputed(self, candidate: StepSettings) -> tuple[int, Training]:
        """(a lower bound on its bytes, its settings) where each rank recomputes the most."""
        degrees, training = candidate.degrees, candidate.training
        stages = split_stages(self.model, degrees, training)
        last = [
            entries_of(
                self.ladder,
                candidate,
                max(len(stage.layers) for stage in rank_stages(stages, degrees, rank)),
                offload=self.host_bytes is None,
            )[-1]
            for rank in range(degrees.pipeline)
        ]
        bound_bytes = max(
            self.bounds.memory_bytes(degrees, training, rank, recompute)
            for rank, recompute in enumerate(last)
        )
        return bound_bytes, replace(training, recompute=_of_ranks(last))

    def _memory(self, candidate: StepSettings, rank: int, recompute: str) -> RankMemory:
        """The memory of a rank with this recomputation, simulated once."""
        degrees, training = candidate.degrees, replace(candidate.training, recompute=recompute)
        key = (degrees, training, rank)
        if key not in self._memories:
            count = training.micro_batches(degrees)
            played = representative_micro_batches(degrees, training) or count
            self.num_layers += -(-self.model.num_layers // degrees.pipeline) * min(count, played)
            self._memories[key] = rank_memory(self.model, degrees, training, self.fabric, rank)
        return self._memories[key]


@checked
def choose(
    preset: str | Architecture,
    budget_bytes: int | str,
    *,
    devices: int,
    global_batch: int,
    device: str = "h100-80gb",
    efficiency: float | None = None,
    effort: int = 40,
    **options: Any,
) -> ClusterChoice:
    """The fastest step on a cluster for which no device reserves more than `budget_bytes`.

    Parameters
    ----------
    preset, device, efficiency
        As in `schedsim.cluster`.
    budget_bytes
        Bytes that each device may reserve, or a size like ``"80GB"``.
    devices
        Number of devices.
    global_batch
        Sequences of a step on all devices together.
    effort
        The most candidates to simulate; none is begun after `EFFORT_LAYERS` simulated layers for
        each. The lower bound is then the least of the candidates that are left.
    **options
        Degrees, which are then fixed, and settings of `schedsim.clusters.Training`, except those
        that the search chooses: ``batch``, ``num_micro_batches``, ``schedule``, ``num_chunks``,
        ``recompute``, ``zero_stage``. Besides, ``keep``: whether a rank may keep what single ops of
        its layers make (true by default). Otherwise it recomputes nothing, every second product,
        half of its layers or all, which frameworks have words for. And ``offload``: whether what it
        keeps may lie in host memory (true by default), and ``host_bytes``: the most of it for each
        device (no limit by default). And ``framework``: one of
        `schedsim.clusters.launch_settings.FRAMEWORKS`, whose settings have to say the step: one
        recomputation for all ranks, of those that it has words for. And ``flash`` and
        ``network``, as in `schedsim.cluster`.

    Returns
    -------
    ClusterChoice

    Raises
    ------
    SchedsimError
        An option is unknown or is chosen by the search, or no candidate is consistent.

    Examples
    --------
    >>> found = choose("llama3.2-1b", 80 * 10**9, devices=8, global_batch=8, seq=1024)
    >>> found.optimal, found.best.training.recompute
    (True, 'none')
    """
    budget_bytes = _budget(budget_bytes)
    if effort < 1:
        raise SchedsimError(f"--effort {effort} is not 1 or more", hint="40 by default")
    network = options.pop("network", None)
    fabric = get_fabric(device, efficiency, options.pop("flash", 2), network)
    model = get_architecture(preset)
    keep, offload = options.pop("keep", True), options.pop("offload", True)
    for name, value in (("keep", keep), ("offload", offload)):
        if not isinstance(value, bool):
            raise SchedsimError(f"{name} {value!r} is not true or false")
    host_bytes = options.pop("host_bytes", None)
    if host_bytes is not None and (
        isinstance(host_bytes, bool) or not isinstance(host_bytes, int) or host_bytes < 0
    ):
        raise SchedsimError(f"host_bytes {host_bytes!r} is not 0 or more")
    framework = options.pop("framework", None)
    if framework is not None:
        check_framework(framework)
    space = _space(devices, global_batch, of_model(options, model))
    check_device(space.training, fabric)
    check_network(network, devices, fabric)
    search = _Search(
        model,
        fabric,
        budget_bytes,
        keep=keep,
        offload=offload,
        host_bytes=host_bytes,
        plain=None if framework is None else plain_policies(framework, space.training),
    )
    every = [
        one
        for one in space.candidates(model, fabric)
        if framework is None or has_order(framework, one.training.schedule)
    ]
    if not every:
        space.check(model, fabric)
        raise SchedsimError(
            f"{framework} has no order of micro-batches for what is given",
            hint="leave degrees out, or --launch",
        )
    able = [one for one in map(search.bounded, every) if one is not None]
    able.sort(key=lambda one: (one.estimate_s, one.bound_s))
    best_s, tried = float("inf"), 0
    fitting: list[tuple[float, StepSettings, Training]] = []
    faster: tuple[float, StepSettings] | None = None
    left: list[float] = []
    untried: list[StepSettings] = []
    for candidate in spread(able):
        if candidate.bound_s >= best_s:
            continue
        if tried >= effort or search.num_layers >= EFFORT_LAYERS * effort:
            untried.append(candidate)
            continue
        tried += 1
        least_s = search.step_s(candidate, candidate.training)
        if least_s >= best_s:
            continue
        # Some that fit and are slower are shown beside the best one.
        shown = len({one.degrees for _, one, _ in fitting})
        found, search.skipped = None, False
        if shown < _NUM_SHOWN or not search.is_slower(candidate, best_s):
            found = search.fastest(candidate, best_s, least_s)
        if (found is None or found.step_s > least_s) and (faster is None or least_s < faster[0]):
            faster = least_s, candidate
        if found is None:
            if search.skipped:
                left.append(candidate.bound_s)
            continue
        if found.bound_s < found.step_s:
            left.append(found.bound_s)
        fitting.append((found.step_s, candidate, found.training))
        best_s = min(best_s, found.step_s)
    left += search.bounds_of(untried, best_s, effort)
    leanest = None if fitting else search.leanest(every, effort)
    if leanest is not None and leanest.reserved_bytes <= budget_bytes:
        best_s = search.step_s(leanest.candidate, leanest.training)
        fitting.append((best_s, leanest.candidate, leanest.training))
    fitting.sort(key=lambda row: row[0])
    predictions = [
        search.prediction(candidate, training)
        for _, candidate, training in _of_different_degrees(fitting)
    ]
    return ClusterChoice(
        predictions[0] if predictions else None,
        tuple(predictions[1:]),
        min(best_s, *left) if left else best_s,
        len(every),
        tried,
        _binds(best_s, faster, budget_bytes),
        None if predictions or leanest is None else leanest.reserved_bytes,
        narrowings(space, model, fabric),
    )


_CHOSEN = ("batch", "num_micro_batches", "schedule", "num_chunks", "recompute", "zero_stage")
_NUM_SHOWN = 5
_SLIGHT = 5e-4
"""A gain in time that is not worth a word: one that prints as 0.0 %."""


def _of_ranks(every: Sequence[str]) -> str:
    """The setting of pipeline ranks with these settings: one where they are alike."""
    return every[0] if len(set(every)) == 1 else "/".join(every)


def _demanded(candidate: StepSettings) -> Training:
    """The settings of `candidate` with the recomputation that its memory bound demands."""
    least = without_host("/".join(candidate.least)).split("/")
    return replace(candidate.training, recompute=_of_ranks(least))


def _by_rank(training: Training, degrees: Degrees) -> list[str]:
    """The recomputation of each pipeline rank."""
    of_ranks = training.recompute.split("/")
    return [of_ranks[rank % len(of_ranks)] for rank in range(degrees.pipeline)]


def _first_within(needs: list[int], budget_bytes: int) -> int | None:
    """The place of the first of `needs` that is within the budget."""
    return next((place for place, needed in enumerate(needs) if needed <= budget_bytes), None)


def entries_of(
    ladder: RecomputeLadder, candidate: StepSettings, num_layers: int, *, offload: bool = True
) -> list[str]:
    """Settings of a rank whose stages have at most `num_layers` layers, each once."""
    entries = ladder.entries(candidate.degrees, candidate.training)
    found = dict.fromkeys(setting(entries, k, num_layers) for k in range(len(entries)))
    return [one for one in found if offload or without_host(one) == one]


def _budget(value: float | str) -> int:
    """The bytes that `value` stands for."""
    if isinstance(value, str):
        return parse_bytes(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf:
        raise SchedsimError(f"budget {value!r} is not a number of bytes", hint='or "80GB"')
    return int(value)


def _space(devices: int, global_batch: int, options: dict[str, Any]) -> SearchSpace:
    for name in _CHOSEN:
        if name in options:
            raise SchedsimError(f"{flag_of(name)} is chosen by the search", hint="leave it out")
    for name, value in (("--devices", devices), ("--global-batch", global_batch)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SchedsimError(f"{name} {value!r} is not a whole number, 1 or more")
    fixed, settings = split_options(options)
    Degrees(**fixed).check_numbers()
    training = Training(**settings)
    training.check_types()
    training.check_numbers()
    return SearchSpace(devices, global_batch, fixed, training)


def _of_different_degrees(
    fitting: list[tuple[float, StepSettings, Training]],
) -> list[tuple[float, StepSettings, Training]]:
    shown: list[tuple[float, StepSettings, Training]] = []
    seen: set[Degrees] = set()
    for row in fitting:
        if row[1].degrees not in seen and len(shown) < _NUM_SHOWN:
            seen.add(row[1].degrees)
            shown.append(row)
    return shown


def _binds(best_s: float, faster: tuple[float, StepSettings] | None, budget_bytes: int) -> str:
    """Why no step is faster."""
    if faster is None or faster[0] >= best_s * (1 - _SLIGHT):
        return "time: every candidate that would be faster by its bound was simulated"
    gain = 1 - faster[0] / best_s if best_s < float("inf") else 1.0
    degrees = faster[1].degrees
    split = ", ".join(
        f"{name} {getattr(degrees, name)}"
        for name in ("fsdp", "replicate", "tensor", "pipeline", "context", "expert")
        if getattr(degrees, name) > 1
    )
    return (
        f"memory: {split or 'one device'} with nothing recomputed would take {gain:.1%} less time, "
        f"and does not fit in {format_bytes_short(budget_bytes)}"
    )
