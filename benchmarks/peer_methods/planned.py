"""Planners of blocks: ckptplan, and the MILP of torch.distributed._tools.

Both measure only with CUDA. The figures that they lack on a CPU (bytes of a block, times of ops)
are measured here and given to them; the decisions are theirs.
"""

from __future__ import annotations

import contextlib
import io
import time
from dataclasses import replace
from typing import Any

import torch
from schedsim.validation.measure import AllocatorMeter
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from .eager import Refused, Step, per_block
from .subjects import Subject, load_subject


def as_they_come(subject: Subject, tool: str) -> Step:
    """The tool without help: what it says on this machine."""
    if tool == "ckptplan":
        return _ckptplan(subject, 0.5, helped=False)
    return _sac_ilp(subject, 0.5, quick=True, helped=False)


def ckptplan(subject: Subject, saving: float) -> Step:
    """The blocks that ckptplan checkpoints to save that share of the activations."""
    return _ckptplan(subject, saving, helped=True)


def sac_ilp(subject: Subject, share: float, *, quick: bool) -> Step:
    """Selective checkpointing by `sac_milp`, within that share of its own baseline peak."""
    return _sac_ilp(subject, share, quick=quick, helped=True)


def _ckptplan(subject: Subject, saving: float, *, helped: bool) -> Step:
    try:
        import ckptplan as tool
    except ImportError as error:
        raise Refused("not installed: pip install ckptplan") from error
    if not subject.parts:
        raise Refused("takes a sequence of modules; this model is none")
    names = [(f"part{i}", part) for i, part in enumerate(subject.parts)]
    try:
        blocks = tool.declare_blocks(subject.model, names)
        profiles = tool.profile_blocks(blocks, subject.inputs, device="cpu", num_trials=3)
        if helped:
            sizes = _kept_bytes(subject)
            profiles = tuple(
                replace(
                    profile,
                    timing_only=False,
                    activation_bytes_estimate=size,
                    activation_bytes_method="isolated_forward_delta",
                )
                for profile, size in zip(profiles, sizes, strict=True)
            )
        plan = tool.plan_checkpoints(
            profiles, blocks, target_kind="activation_saving_fraction", target_value=saving
        )
        module = tool.apply_plan(blocks, plan, subject.inputs)
    except Exception as error:  # whatever it raises is its answer
        raise _refusal(error) from error
    return lambda: subject.loss(subject.output(module))


def _refusal(error: Exception) -> Refused:
    text = " ".join(str(error).split()) or "no message"
    return Refused(f"{type(error).__name__}: {text}"[:200])


def _kept_bytes(subject: Subject) -> list[int]:
    """Bytes that each part keeps after its forward, less its input: ckptplan's own definition."""
    found = []
    value: Any = subject.inputs[0]
    for part in subject.parts:
        given = value.detach()
        if given.is_floating_point():
            given.requires_grad_()
        [reading] = AllocatorMeter().read(lambda part=part, given=given: part(given))
        found.append(max(0, reading.end_bytes))
        value = reading.result
    return found


class _CpuTimes:
    """Times of ops on this CPU, for estimators that would ask CUDA for them."""

    def __init__(self) -> None:
        self.known: dict[Any, float] = {}

    def estimate(self, op: Any, arguments: Any, keywords: Any) -> tuple[Any, float]:
        """The op's result on fake tensors, and its milliseconds on real ones."""
        keywords = keywords or {}
        result = op(*arguments, **keywords)
        tensors: list[Any] = []
        tree_map_only(torch.Tensor, tensors.append, (arguments, keywords))
        key = (op, tuple((tuple(t.shape), t.stride(), t.dtype) for t in tensors))
        if key not in self.known:
            self.known[key] = self._measure(op, arguments, keywords)
        return result, self.known[key]

    @staticmethod
    def _measure(op: Any, arguments: Any, keywords: Any) -> float:
        from torch._subclasses.fake_tensor import unset_fake_temporarily

        with unset_fake_temporarily(), torch.no_grad(), torch.random.fork_rng([]):

            def real(t: torch.Tensor) -> torch.Tensor:
                made = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
                return made.fill_(0.5) if t.is_floating_point() else made.zero_()

            arguments, keywords = tree_map_only(torch.Tensor, real, (arguments, keywords))
            times = []
            try:
                for _ in range(3):
                    started = time.perf_counter()
                    op(*arguments, **keywords)
                    times.append(time.perf_counter() - started)
            except (RuntimeError, IndexError, NotImplementedError):
                return 0.0
        return 1e3 * min(times)


def _sac_ilp(subject: Subject, share: float, *, quick: bool, helped: bool) -> Step:
    try:
        from torch.distributed._tools.sac_ilp import (
            get_optimal_checkpointing_policy_per_module,
            sac_milp,
        )
    except ImportError as error:
        raise Refused("needs PuLP: pip install pulp") from error
    from torch.distributed._tools.ilp_utils import (
        get_peak_memory_runtime_baseline,
        parse_module_info,
    )
    from torch.distributed._tools.sac_estimator import OPS_TO_ALWAYS_SKIP

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            info, estimator, names = _estimated(subject.name, quick, helped)
        graph = parse_module_info(info)
        peak_bytes, _ = get_peak_memory_runtime_baseline(graph)
        chosen, _, bound_bytes = sac_milp(graph, share * peak_bytes / 2**30, ac_units=names)
    except ImportError as error:
        raise Refused("needs pwlf: pip install pwlf") from error
    except Exception as error:  # whatever it raises is its answer
        raise _refusal(error) from error
    if bound_bytes < 0:
        raise Refused("its MILP has no solution at this budget")
    policies = {
        names.index(name): get_optimal_checkpointing_policy_per_module(
            estimator.sac_mod_stats[name], 1.0 - discard
        )
        for name, discard in chosen.items()
    }

    def contexts(number: int) -> Any:
        kept = policies.get(number)
        if kept is None:
            return None

        def make() -> Any:
            at = {False: 0, True: 0}

            def policy(context: Any, op: Any, *_given: Any, **_named: Any) -> CheckpointPolicy:
                if op in OPS_TO_ALWAYS_SKIP:
                    return CheckpointPolicy.PREFER_RECOMPUTE
                place = at[context.is_recompute]
                at[context.is_recompute] += 1
                save = place < len(kept) and kept[place]
                return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE

            return create_selective_checkpoint_contexts(policy)

        return make

    return per_block(subject, contexts=contexts)


def _estimated(name: str, quick: bool, helped: bool) -> tuple[Any, Any, list[str]]:
    """The tools' estimates for a fake copy of the model, and its blocks' names there."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.ilp_utils import aggregate_stats
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.distributed._tools.runtime_estimator import RuntimeEstimator
    from torch.distributed._tools.sac_estimator import SACEstimator

    mode = "operator-level-benchmark"
    with FakeTensorMode(), torch.device("cpu"):
        fake = load_subject(name, quick=quick)
        model = fake.model

        # The tools want every module they meet to be one of the model's: the loss's forward alone.
        loss = getattr(fake.loss, "forward", fake.loss)

        def forward() -> Any:
            return loss(fake.output())

        tracker = MemTracker()
        tracker.track_external(model)
        with tracker:
            for number in range(2):
                forward().backward()
                model.zero_grad()
                if not number:
                    tracker.reset_mod_stats()
        times, estimator = RuntimeEstimator(), SACEstimator()
        cpu = _CpuTimes()
        with times(estimate_mode_type=mode) as entered:
            if helped:
                entered._estimate = cpu.estimate
            forward().backward()
        model.zero_grad()
        with estimator(estimate_mode_type=mode) as entered:
            if helped:
                entered._estimate_runtime = cpu.estimate
            forward()
        info = aggregate_stats(model, tracker, times, estimator, torch.device("cpu"))
    for stats in info["mod_stats"]:
        # Its piecewise fit divides by zero for a module of few ops: a line instead.
        if any(value != value for value in stats["slopes"]):
            stats.update(slopes=[1.0], intercepts=[0.0], n_segments=1)
    root = type(model).__name__
    paths = {id(module): path for path, module in model.named_modules()}
    names = [f"{root}.{paths[id(block)]}" for block in fake.blocks]
    return info, estimator, names
