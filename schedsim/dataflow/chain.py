"""Chains: stages in a line, then a loss. The optimal algorithms work on this short form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ..checks.value_checks import (
    check_bytes,
    check_name,
    check_own_bytes,
    check_seconds,
    check_total,
    shown,
)
from ..errors import InvalidWorkloadError
from .chain_graph import lowered
from .graph import Graph
from .op import as_items
from .recorded_step import RecordedStep
from .shown_in_notebooks import ShownInNotebooks
from .variants import StageVariant, check_distinct

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


RULES = ("", "keep", "recompute")
"""Rules of a stage: none; its forward runs once; its saved bundle is not kept for the backward."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a chain: it turns ``a[i]`` into ``a[i+1]``.

    Parameters
    ----------
    name
        Any non-empty text, unique in its chain.
    forward_s, backward_s
        Times of one forward and one backward run, in seconds.
    output_bytes
        Size of the activation that the stage passes on.
    saved_bytes
        Everything the stage's backward needs besides its input, the output included.
    forward_workspace_bytes, backward_workspace_bytes
        Temporary bytes that live only while the op runs. That of a backward is negative where it
        frees part of what it reads before it makes gradients (see `schedsim.dataflow.op.Op`).
    saving_workspace_bytes
        Workspace of a forward run that keeps its saved bundle; ``None`` for the same as
        `forward_workspace_bytes`.
    variants
        Other saved bundles, which a planner may choose where their kinds are allowed.
    rule
        ``"keep"``: the forward runs once in every plan. ``"recompute"``: the saved bundle, the
        output excepted, is not kept from the forward to the backward. Empty: the planner decides.
    """

    name: str
    forward_s: float
    backward_s: float
    output_bytes: int
    saved_bytes: int
    forward_workspace_bytes: int = 0
    backward_workspace_bytes: int = 0
    saving_workspace_bytes: int | None = None
    variants: tuple[StageVariant, ...] = ()
    rule: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "variants", as_items(self.variants, "variants", StageVariant))

    def check(self, path: str) -> None:
        """Raise `InvalidWorkloadError` naming the field below `path` that is wrong."""
        check_name(self.name, f"{path}.name")
        check_seconds(self.forward_s, f"{path}.forward_s")
        check_seconds(self.backward_s, f"{path}.backward_s")
        check_bytes(self.output_bytes, f"{path}.output_bytes")
        check_bytes(self.saved_bytes, f"{path}.saved_bytes")
        check_bytes(self.forward_workspace_bytes, f"{path}.forward_workspace_bytes")
        if self.saving_workspace_bytes is not None:
            check_bytes(self.saving_workspace_bytes, f"{path}.saving_workspace_bytes")
        if self.saved_bytes < self.output_bytes:
            raise InvalidWorkloadError(
                f"{self.saved_bytes} is less than output_bytes {self.output_bytes}",
                path=f"{path}.saved_bytes",
                hint="saved_bytes counts the output too",
            )
        if self.rule not in RULES:
            raise InvalidWorkloadError(
                f"{shown(self.rule)} is no rule", path=f"{path}.rule", hint="keep, or recompute"
            )
        for i, variant in enumerate(self.variants):
            variant.check(f"{path}.variants[{i}]", self.output_bytes)
        check_distinct(self.variants, f"{path}.variants")


@dataclass(frozen=True)
class Chain(ShownInNotebooks):
    """A line of stages and a loss, with the bytes that are always resident.

    Parameters
    ----------
    name
        What the workload is called in plans and tables.
    input_bytes
        Size of ``a[0]``, the input of the first stage.
    stages
        At least one.
    static_bytes
        Parameters, gradients, optimizer state: resident all the time.
    loss_s, loss_workspace_bytes
        Time and workspace of the loss op; zero unless given.
    recorded
        The recorded requests to the allocator, as in `Graph`.
    gradient_bytes
        Bytes of parameter gradients that the backward of each stage makes, and the loss as the last
        entry; they stay until the end of the step. Empty for none. The workspaces of the stages
        include them: the workspace of a backward includes the gradients that it and the backwards
        before it make, that of a forward the gradients that are already there. So the stages alone
        give an upper bound; `graph` creates each gradient where it is made.

    Examples
    --------
    >>> chain = Chain("two", 4, (Stage("s0", 1, 2, 4, 10), Stage("s1", 1, 2, 4, 10)))
    >>> chain.num_stages, chain.store_all_s
    (2, 6.0)
    """

    name: str
    input_bytes: int
    stages: tuple[Stage, ...]
    static_bytes: int = 0
    loss_s: float = 0.0
    loss_workspace_bytes: int = 0
    recorded: RecordedStep | None = field(default=None, compare=False, repr=False)
    gradient_bytes: tuple[int, ...] = ()

    kind = "chain"

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        check_bytes(self.input_bytes, "input_bytes")
        check_bytes(self.static_bytes, "static_bytes")
        check_seconds(self.loss_s, "loss_s")
        object.__setattr__(self, "stages", as_items(self.stages, "stages", Stage))
        if not self.stages:
            raise InvalidWorkloadError("a chain needs at least one stage", path="stages")
        seen: dict[str, int] = {}
        for i, stage in enumerate(self.stages):
            stage.check(f"stages[{i}]")
            if stage.name in seen:
                raise InvalidWorkloadError(
                    f"duplicate name {shown(stage.name)}, also of stages[{seen[stage.name]}]",
                    path=f"stages[{i}].name",
                )
            seen[stage.name] = i
        object.__setattr__(self, "gradient_bytes", tuple(self.gradient_bytes))
        self._check_gradients()
        self._check_workspaces()
        total = self.input_bytes + self.static_bytes + self.loss_workspace_bytes
        for stage in self.stages:
            # The output's bytes stand for its gradient; saved_bytes hold the output itself.
            total += stage.output_bytes + stage.saved_bytes
            total += stage.forward_workspace_bytes + stage.backward_workspace_bytes
            total += stage.saving_workspace_bytes or 0
        check_total(total, "stages")

    def _check_gradients(self) -> None:
        if not self.gradient_bytes:
            return
        if len(self.gradient_bytes) != self.num_stages + 1:
            raise InvalidWorkloadError(
                f"{len(self.gradient_bytes)} entries for {self.num_stages} stages and the loss",
                path="gradient_bytes",
            )
        for i, size in enumerate(self.gradient_bytes):
            check_bytes(size, f"gradient_bytes[{i}]")
        for i, (stage, beside) in enumerate(zip(self.stages, self.beside_bytes, strict=True)):
            saving = stage.saving_workspace_bytes
            for name, size, least in (
                ("forward", stage.forward_workspace_bytes, beside),
                ("saving", beside if saving is None else saving, beside),
            ):
                if size < least:
                    raise InvalidWorkloadError(
                        f"{size} is less than the {least} bytes of gradients beside it",
                        path=f"stages[{i}].{name}_workspace_bytes",
                        hint="workspaces hold the gradients of gradient_bytes",
                    )

    def _check_workspaces(self) -> None:
        """Refuse ops that take memory away: outputs and workspace together are not negative."""
        written = 0  # the first stage makes no gradient of its input
        for i, (stage, beside) in enumerate(zip(self.stages, self.beside_bytes, strict=True)):
            path = f"stages[{i}].backward_workspace_bytes"
            check_own_bytes(stage.backward_workspace_bytes, written, path)
            if stage.backward_workspace_bytes + written < beside:
                raise InvalidWorkloadError(
                    f"{stage.backward_workspace_bytes} and the gradient of its input are less than "
                    f"the {beside} bytes of gradients beside it",
                    path=path,
                    hint="workspaces hold the gradients of gradient_bytes",
                )
            written = stage.output_bytes
        check_own_bytes(self.loss_workspace_bytes, written, "loss_workspace_bytes")

    @property
    def beside_bytes(self) -> tuple[int, ...]:
        """Bytes of parameter gradients that exist before the backward of each stage."""
        return gradients_beside(self.gradient_bytes) or (0,) * self.num_stages

    @property
    def num_stages(self) -> int:
        """Number of stages, L."""
        return len(self.stages)

    @property
    def op_names(self) -> tuple[str, ...]:
        """Names of the ops in store-all order: F0..F{L-1}, loss, B{L-1}..B0."""
        return self._op_names

    @cached_property
    def _op_names(self) -> tuple[str, ...]:
        num = self.num_stages
        forward = [f"F{i}" for i in range(num)]
        return (*forward, "loss", *(f"B{i}" for i in range(num - 1, -1, -1)))

    @property
    def loss_index(self) -> int:
        """Index of the loss in `op_names`; ``F{i}`` is `i` and ``B{i}`` is ``2 * L - i``."""
        return self.num_stages

    @cached_property
    def store_all_s(self) -> float:
        """Time of the step when nothing is recomputed, in seconds."""
        times = [s.forward_s for s in self.stages] + [s.backward_s for s in self.stages]
        return math.fsum([*times, self.loss_s])

    @property
    def busiest_stream_s(self) -> float:
        """`store_all_s`: a chain runs on one stream, and no schedule of it takes less."""
        return self.store_all_s

    def activation_bytes(self) -> NDArray[np.int64]:
        """Sizes of ``a[0]..a[L]``, shape ``(num_stages + 1,)``."""
        import numpy as np

        return np.array([self.input_bytes, *(s.output_bytes for s in self.stages)], dtype=np.int64)

    @cached_property
    def graph(self) -> Graph:
        """The chain as ops and tensors: a forward and a backward op per stage, and the loss.

        Activations are named ``a0..aL``, saved bundles without their output ``r1..rL`` (absent
        where empty) and gradients ``d1..dL``; index ``i + 1`` belongs to stage ``i``. Gradients of
        parameters are ``g1..gL``, and ``g`` those of the loss.
        """
        return lowered(self)

    def stage_label(self, op_name: str) -> str:
        """``"F3 (block3)"``: an op name with the name of the stage it belongs to."""
        if op_name[:1] in "FB" and op_name[1:].isdigit():
            return f"{op_name} ({self.stages[int(op_name[1:])].name})"
        return op_name

    @classmethod
    def from_arrays(
        cls,
        name: str,
        input_bytes: int,
        *,
        forward_s: Sequence[float] | NDArray[Any],
        backward_s: Sequence[float] | NDArray[Any],
        output_bytes: Sequence[int] | NDArray[Any],
        saved_bytes: Sequence[int] | NDArray[Any],
        forward_workspace_bytes: Sequence[int] | NDArray[Any] | None = None,
        backward_workspace_bytes: Sequence[int] | NDArray[Any] | None = None,
        static_bytes: int = 0,
    ) -> Chain:
        """A chain from one sequence per field, all of length L; stages are named ``s0..``.

        Raises
        ------
        InvalidWorkloadError
            The sequences differ in length, or a number is not what its field takes.
        """
        try:
            num = len(forward_s)
        except TypeError:
            raise InvalidWorkloadError(
                f"{shown(forward_s)} is not a list", path="forward_s"
            ) from None
        zeros = [0] * num
        columns = {
            "forward_s": forward_s,
            "backward_s": backward_s,
            "output_bytes": output_bytes,
            "saved_bytes": saved_bytes,
            "forward_workspace_bytes": zeros
            if forward_workspace_bytes is None
            else forward_workspace_bytes,
            "backward_workspace_bytes": zeros
            if backward_workspace_bytes is None
            else backward_workspace_bytes,
        }
        for key, column in columns.items():
            if not hasattr(column, "__len__") or isinstance(column, Mapping):
                raise InvalidWorkloadError(f"{shown(column)} is not a list", path=key)
            if len(column) != num:
                raise InvalidWorkloadError(
                    f"{len(column)} entries, but forward_s has {num}", path=key
                )
        stages = tuple(
            Stage(
                f"s{i}",
                **{key: _plain(column[i], f"{key}[{i}]") for key, column in columns.items()},
            )
            for i in range(num)
        )
        return cls(
            name,
            _plain(input_bytes, "input_bytes"),
            stages,
            static_bytes=_plain(static_bytes, "static_bytes"),
        )


def gradients_beside(made_bytes: Sequence[int]) -> tuple[int, ...]:
    """Bytes of parameter gradients that exist before the backward of each stage. O(stages).

    Parameters
    ----------
    made_bytes
        Bytes that each stage's backward makes, and the loss as the last entry; or empty.

    Examples
    --------
    >>> gradients_beside([100, 10, 1])
    (11, 1)
    """
    there = accumulate(reversed(made_bytes[1:]))
    return tuple(there)[::-1]


def _plain(number: Any, path: str) -> Any:
    """`number` as a Python number, where it is one of numpy's."""
    if not hasattr(number, "item"):
        return number
    try:
        return number.item()
    except ValueError:  # an array of several entries: the column has two dimensions
        raise InvalidWorkloadError(
            f"{shown(number.tolist())} is not one number",
            path=path,
            hint="columns have one dimension",
        ) from None
