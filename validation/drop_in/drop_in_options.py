"""The options of torch.compile(model, backend="schedsim", options={...})."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from schedsim.errors import SchedsimError, did_you_mean
from schedsim.plans.budgets import is_share

from ..guards.differential import read_check


@dataclass(frozen=True)
class DropInOptions:
    """How the steps of a user's own loop are planned.

    Attributes
    ----------
    budget
        Bytes of everything resident and the step: a number, ``"24GiB"``, ``"80%"`` of the
        store-all peak, or ``"cuda:0"`` for what is free there.
    optimizer
        Optimizer whose state is counted, as of `schedsim.rematerialize`; without it, the state of a
        torch optimizer is counted from its first step on.
    extra_bytes
        Bytes of whatever else is resident and not seen by the parts: targets, an averaged copy. On
        CUDA, what is allocated when a step begins is counted in any case.
    planner, effort
        As of `schedsim.plan`, for each part of a step.
    time_limit_s
        A watchdog beside the effort.
    compile
        Whether to compile each half of the schedule.
    keep
        Patterns of ops that must run once, as of `schedsim.dataflow.run_once`: names of ops or
        paths of modules.
    largest
        Dimension of the inputs -> its largest size, where sizes differ from step to step:
        ``{1: 2048}``. Plans are made for this size from the start, not for the largest size seen.
    dynamic
        For a model in place, as of `torch.compile`: ``False`` plans each shape separately.
    check
        ``"plan"``: before a new schedule is trusted, it runs beside another one on the inputs of
        a step, and at a second size when one comes again, at the price of two steps each. For a
        model in place, the first step of each new graph is also compared with the plain one, at the
        price of two steps; with a number N, every N-th step is. ``"never"``: nothing is compared.
    background
        Whether to search for a quicker schedule beside the loop, when inputs are larger than
        planned for and fit by a schedule that is known.
    """

    budget: int | str
    optimizer: Any = None
    extra_bytes: int = 0
    planner: str = "auto"
    effort: float = 2.0
    time_limit_s: float | None = None
    compile: bool = False
    keep: tuple[str, ...] = ()
    largest: Mapping[int, int] = field(default_factory=dict)
    dynamic: bool | None = None
    background: bool = True
    check: str | int = "plan"

    @property
    def is_share(self) -> bool:
        """Whether the budget is a share of the peak of a step that keeps everything.

        Examples
        --------
        >>> DropInOptions("80%").is_share, DropInOptions("24GiB").is_share
        (True, False)
        """
        return isinstance(self.budget, str) and is_share(self.budget)

    @classmethod
    def read(cls, options: Mapping[str, Any] | None) -> DropInOptions:
        """The options in a user's ``options=``.

        Raises
        ------
        SchedsimError
            There is no budget, or an option is unknown; the message names the nearest.

        Examples
        --------
        >>> DropInOptions.read({"budget": "24GiB"}).planner
        'auto'
        """
        given = dict(options or {})
        if "recompute" in given:
            raise SchedsimError(
                "recompute= is not for a model in place",
                hint="keep= is; or leave in_place out, and give the loss",
            )
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise SchedsimError(
                    f"options has {name!r}, which schedsim's backend does not know",
                    hint=did_you_mean(str(name), known, f"one of {', '.join(known)}"),
                )
        if "budget" not in given:
            raise SchedsimError(
                "schedsim's backend needs a budget",
                hint='torch.compile(model, backend="schedsim", options={"budget": "24GiB"})',
            )
        read_check(given.get("check", "plan"))
        keep = given.get("keep", ())
        given["keep"] = (keep,) if isinstance(keep, str) else tuple(keep)
        largest = given.get("largest", {})
        numbers = isinstance(largest, Mapping) and all(
            isinstance(n, int) and not isinstance(n, bool) for pair in largest.items() for n in pair
        )
        if not numbers:
            raise SchedsimError(
                f"largest={largest!r} is not understood",
                hint="a dimension of the inputs and the most that it will be: {1: 2048}",
            )
        return cls(**given)
