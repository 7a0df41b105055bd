"""Measured against planned while training goes on."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import Tensor

from schedsim.errors import SchedsimError
from schedsim.units import format_bytes

from .measure import StorageTracker, storage_bytes
from .measure.cuda import requested_bytes, requested_peak, reset_peak
from .rematerialized import Rematerialized
from .torch_private.pytrees import tree_leaves
from .user_warnings import warn_user


class PlanLeftWarning(UserWarning):
    """A step took more memory than its plan said."""


class Watch:
    """``with watch(module): module(x).backward()`` warns where the step left its plan.

    On the CPU by the bytes of storages (kernels' own scratch is not seen; ops take longer while it
    is on), on CUDA by the caching allocator's count, which costs nothing.

    Attributes
    ----------
    measured_bytes : list of int
        Peaks, a step each.
    """

    def __init__(
        self,
        module: Rematerialized,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        tolerance: float = 0.01,
    ) -> None:
        if not isinstance(module, Rematerialized):
            raise SchedsimError(
                f"a {type(module).__name__} has no plan to watch",
                hint="watch what rematerialize or apply returned (inside of a wrapper: .module)",
            )
        self.module = module
        self.tolerance = tolerance
        self.measured_bytes: list[int] = []
        self._optimizer = optimizer
        self._tracker: StorageTracker | None = None
        self._handle: Any = None
        self._others_bytes = 0
        self._inputs: list[Tensor] = []

    def __enter__(self) -> Watch:
        self._handle = self.module.register_forward_pre_hook(self._before, with_kwargs=True)
        device = self._device()
        if device.type == "cuda":
            gc.collect()
            torch.cuda.synchronize(device)
            self._others_bytes = requested_bytes(device) - storage_bytes(self._resident())
            reset_peak(device)
        else:
            self._tracker = StorageTracker()
            self._tracker.__enter__()  # type: ignore[no-untyped-call]
            self._tracker.add(self._resident(), "static")
        return self

    def __exit__(self, *error: Any) -> None:
        self._handle.remove()
        device = self._device()
        if self._tracker is not None:
            self._tracker.__exit__(*error)  # type: ignore[no-untyped-call]
            peak = self._tracker.peak.total_bytes
            self._tracker = None
        else:
            torch.cuda.synchronize(device)
            own = storage_bytes(self._inputs) if self._inputs else 0
            peak = requested_peak(device) - max(0, self._others_bytes - own)
        self._inputs = []
        if error[0] is None:
            self._judge(peak)

    def __call__(self, *inputs: Any, budget: int | str | None = None, **keywords: Any) -> Any:
        """Plan again: for `inputs`, within `budget`, or both; the plan, where inputs are given."""
        if budget is not None:
            self.module.replan(budget)
        if inputs or keywords:
            return self.module.prepare(*inputs, **keywords).plan
        return None

    def _device(self) -> torch.device:
        return next(self.module.parameters()).device

    def _resident(self) -> list[Tensor]:
        model = self.module.model
        found: list[Any] = [*model.parameters(), *model.buffers()]
        found += [p.grad for p in model.parameters() if p.grad is not None]
        loss = self.module._plans.settings.loss
        if isinstance(loss, torch.nn.Module):
            found += [*loss.parameters(), *loss.buffers()]
        if self._optimizer is not None:
            found += tree_leaves(dict(self._optimizer.state))
        return [tensor for tensor in found if isinstance(tensor, Tensor)]

    def _before(self, _: Any, inputs: Any, keywords: Any) -> None:
        self._inputs = [leaf for leaf in tree_leaves((inputs, keywords)) if _is_tensor(leaf)]
        if self._tracker is not None:
            self._tracker.add(self._inputs, "static")

    def _judge(self, peak: int) -> None:
        state = self.module._plans.last.captured.state
        plan = self.module.last_plan
        assert plan.peak_bytes is not None
        if self._optimizer is None:  # planned for, though not seen
            peak += state.optimizer_bytes
        peak += state.extra_bytes
        self.measured_bytes.append(peak)
        allowed = plan.peak_bytes * (1 + self.tolerance)
        if peak > allowed:
            over = "over the budget" if peak > plan.budget_bytes else "within the budget"
            warn_user(
                f"step {len(self.measured_bytes)} took {format_bytes(peak)}, planned were "
                f"{format_bytes(plan.peak_bytes)} ({over}); something else is alive: kept outputs, "
                "gradients of an earlier step (keep_gradients=True counts them), another model",
                PlanLeftWarning,
            )


def watch(
    module: Rematerialized,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    tolerance: float = 0.01,
) -> Watch:
    """A `Watch` of `module`.

    Parameters
    ----------
    optimizer
        Whose state is then measured; else it is taken as planned.
    tolerance
        Share of the planned peak that a step may take more before it warns.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from schedsim.validation.rematerialize import rematerialize
    >>> model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(64, 8)
    >>> module = rematerialize(model, x, "100%", lambda y: y.sum())
    >>> with watch(module) as seen:
    ...     module(x).backward()
    >>> seen.measured_bytes[0] <= module.plan.peak_bytes
    True
    """
    return Watch(module, optimizer=optimizer, tolerance=tolerance)


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)
