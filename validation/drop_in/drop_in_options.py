"""What torch.compile(model, backend="schedsim", options={...}) is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from schedsim.errors import SchedsimError, did_you_mean


@dataclass(frozen=True)
class DropInOptions:
    """How the steps of a user's own loop are planned.

    Attributes
    ----------
    budget
        Of everything resident and the step: bytes, ``"24GiB"``, ``"80%"`` of the store-all peak,
        or ``"cuda:0"`` for what is free there.
    optimizer
        Whose state is counted, as of `schedsim.rematerialize`; without it, the state of a torch
        optimizer is counted from its first step on.
    extra_bytes
        Whatever else is resident and the parts do not see: targets, an averaged copy. On CUDA
        what is allocated when a step begins is counted without.
    planner, effort
        As of `schedsim.plan`, for each part of a step.
    time_limit_s
        A watchdog beside the effort.
    compile
        Compile each half of the schedule.
    keep
        Patterns of ops that shall run once, as of `schedsim.dataflow.run_once`: names of ops or
        paths of modules.
    """

    budget: int | str
    optimizer: Any = None
    extra_bytes: int = 0
    planner: str = "auto"
    effort: float = 2.0
    time_limit_s: float | None = None
    compile: bool = False
    keep: tuple[str, ...] = ()

    @classmethod
    def read(cls, options: Mapping[str, Any] | None) -> DropInOptions:
        """Of a user's ``options=``.

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
        keep = given.get("keep", ())
        given["keep"] = (keep,) if isinstance(keep, str) else tuple(keep)
        return cls(**given)
