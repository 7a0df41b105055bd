"""Variants: ways to keep what a backward needs in fewer bytes, at the cost of time or exactness.

A stage of a chain may offer other saved bundles (`StageVariant`), a graph other ways to save a
tensor (`GraphVariant`): quantised, in a lower precision, as the two bits of an approximate
derivative, or shared with a tensor that a neighbour keeps anyway. A planner uses a variant only if
its kind is allowed, and the plan names the variants that it uses. `resolve` turns a workload and
chosen variants into a plain workload, which is simulated like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..checks.value_checks import check_bytes, check_name, check_seconds, shown, shown_key
from ..errors import InvalidWorkloadError, SchedsimError

if TYPE_CHECKING:
    from .chain import Chain, Stage
    from .graph import Graph
    from .op import Op

VARIANT_KINDS = {
    "quantize": "saved as integers of fewer bits: gradients of weights change",
    "precision": "saved in a floating point format of fewer bits: gradients of weights change",
    "approx": "an approximate derivative: gradients change",
    "share": "kept once for two readers, by a kernel made for it: gradients stay exact",
}
"""The kinds that may be allowed, and what each does to the numbers of training."""


@dataclass(frozen=True, slots=True)
class StageVariant:
    """Another saved bundle of a stage.

    Parameters
    ----------
    name
        Unique in its stage.
    kind
        One of `VARIANT_KINDS`, or several joined by ``+``, all of which must be allowed.
    saved_bytes
        Replaces the stage's `saved_bytes`, and includes the output too.
    extra_s
        Seconds for encoding and decoding, on top of the stage's times. They are added to the
        backward, because a saved bundle is made once for each backward.
    backward_workspace_bytes, saving_workspace_bytes
        Replace the stage's workspaces, which hold what is decoded. ``None`` keeps the stage's.
    """

    name: str
    kind: str
    saved_bytes: int
    extra_s: float = 0.0
    backward_workspace_bytes: int | None = None
    saving_workspace_bytes: int | None = None

    def check(self, path: str, output_bytes: int) -> None:
        """Raise `InvalidWorkloadError` naming the field below `path` that is wrong."""
        check_name(self.name, f"{path}.name")
        _check_kind(self.kind, f"{path}.kind")
        check_bytes(self.saved_bytes, f"{path}.saved_bytes")
        check_seconds(self.extra_s, f"{path}.extra_s")
        for name in ("backward_workspace_bytes", "saving_workspace_bytes"):
            if (size := getattr(self, name)) is not None:
                check_bytes(size, f"{path}.{name}")
        if self.saved_bytes < output_bytes:
            raise InvalidWorkloadError(
                f"{self.saved_bytes} is less than output_bytes {output_bytes}",
                path=f"{path}.saved_bytes",
                hint="saved_bytes counts the output too",
            )


@dataclass(frozen=True, slots=True)
class GraphVariant:
    """Another way to save a tensor of a graph.

    Parameters
    ----------
    name
        Unique in its graph.
    kind
        One of `VARIANT_KINDS`.
    adds
        Ops that encode and decode. A forward op is inserted where its inputs exist, a backward op
        just before its first reader.
    instead
        Op -> {tensor read: tensor to read in its place, ``""`` for none}.
    writes
        Op -> {additional tensor written: bytes}.
    """

    name: str
    kind: str
    adds: tuple[Op, ...] = ()
    instead: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    writes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "adds", tuple(self.adds))
        for name in ("instead", "writes"):
            table = {op: dict(inner) for op, inner in getattr(self, name).items()}
            object.__setattr__(self, name, table)

    def check(self, path: str, graph: Graph) -> None:
        """Raise `InvalidWorkloadError` naming the field below `path` that is wrong.

        Whether the added ops fit into the order is checked when the variant is chosen.
        """
        check_name(self.name, f"{path}.name")
        _check_kind(self.kind, f"{path}.kind")
        new: set[str] = set()
        for i, op in enumerate(self.adds):
            op.check(f"{path}.adds[{i}]")
            if op.phase == "loss":
                raise InvalidWorkloadError("a variant adds no loss", path=f"{path}.adds[{i}].phase")
            new.update(op.writes)
        for name, sizes in self.writes.items():
            _check_op(name, f"{path}.writes", graph)
            for tensor, size in sizes.items():
                check_name(tensor, f"{path}.writes.{shown_key(name)}")
                check_bytes(size, f"{path}.writes.{shown_key(name)}.{shown_key(tensor)}")
            new.update(sizes)
        for name, table in self.instead.items():
            at = f"{path}.instead.{shown_key(name)}"
            reads = graph.ops[_check_op(name, f"{path}.instead", graph)].reads
            for tensor, other in table.items():
                if tensor not in reads:
                    raise InvalidWorkloadError(f"the op does not read {shown(tensor)}", path=at)
                known = graph.producer(other) is not None or other in graph.inputs
                if other and other not in new and not known:
                    raise InvalidWorkloadError(f"unknown tensor {shown(other)}", path=at)

    def excludes(self, other: GraphVariant) -> bool:
        """Whether both variants change the same read or write, so that only one can be chosen."""
        for mine, its in ((self.instead, other.instead), (self.writes, other.writes)):
            for op in mine.keys() & its.keys():
                if mine[op].keys() & its[op].keys():
                    return True
        return bool({op.name for op in self.adds} & {op.name for op in other.adds})


Variant = StageVariant | GraphVariant


@dataclass(frozen=True, slots=True)
class ChosenVariant:
    """A variant that a plan uses; `stage` is empty for a variant of a graph."""

    variant: Variant
    stage: str = ""

    @property
    def label(self) -> str:
        """``"layer3: int8"``, or the name alone."""
        return f"{self.stage}: {self.variant.name}" if self.stage else self.variant.name


def _check_kind(kind: str, path: str) -> None:
    for part in kind.split("+"):
        if part not in VARIANT_KINDS:
            raise InvalidWorkloadError(
                f"{shown(part)} is not a kind of variant",
                path=path,
                hint=f"one of {', '.join(VARIANT_KINDS)}, or several joined by +",
            )


def _check_op(name: str, path: str, graph: Graph) -> int:
    try:
        return graph.op_index(name)
    except KeyError:
        raise InvalidWorkloadError(f"unknown op {shown(name)}", path=path) from None


def check_distinct(variants: Sequence[Variant], path: str) -> None:
    """Raise `InvalidWorkloadError` where two of `variants` have one name."""
    seen: dict[str, int] = {}
    for i, variant in enumerate(variants):
        if variant.name in seen:
            raise InvalidWorkloadError(
                f"duplicate name {shown(variant.name)}, also of variants[{seen[variant.name]}]",
                path=f"{path}[{i}].name",
            )
        seen[variant.name] = i


def check_allowed(allow: Iterable[str]) -> tuple[str, ...]:
    """The kinds in `allow`, each once; `SchedsimError` for an unknown kind.

    A text is read as on the command line: kinds with commas between them.
    """
    kinds = tuple(dict.fromkeys(allow.split(",") if isinstance(allow, str) else allow))
    for kind in kinds:
        if kind not in VARIANT_KINDS:
            raise SchedsimError(
                f"{kind!r} is not a kind of variant", hint=f"one of {', '.join(VARIANT_KINDS)}"
            )
    return kinds


def stage_options(stage: Stage, allow: Collection[str]) -> list[StageVariant]:
    """The variants of `stage` all of whose kinds are allowed."""
    return [v for v in stage.variants if set(v.kind.split("+")) <= set(allow)]


def graph_options(graph: Graph, allow: Collection[str]) -> list[GraphVariant]:
    """The variants of `graph` all of whose kinds are allowed."""
    return [v for v in graph.variants if set(v.kind.split("+")) <= set(allow)]


def resolve(workload: Chain | Graph, chosen: Sequence[ChosenVariant]) -> Chain | Graph:
    """`workload` with the `chosen` variants applied, as a plain workload; itself without any.

    Raises
    ------
    SchedsimError
        The workload lacks a stage or an op that a variant names, or two variants exclude each
        other.

    Notes
    -----
    O(ops + reads).

    Examples
    --------
    >>> from schedsim import Chain, Stage
    >>> int8 = StageVariant("int8", "quantize", saved_bytes=12, extra_s=0.5)
    >>> chain = Chain("one", 4, (Stage("s", 1, 2, 4, 20, variants=(int8,)),))
    >>> small = resolve(chain, [ChosenVariant(int8, "s")])
    >>> small.stages[0].saved_bytes, small.stages[0].backward_s
    (12, 2.5)
    """
    if not chosen:
        return workload
    if workload.kind == "chain":
        return _resolved_chain(workload, chosen)  # type: ignore[arg-type]
    return _resolved_graph(workload, [c.variant for c in chosen])  # type: ignore[arg-type]


def _resolved_chain(chain: Chain, chosen: Sequence[ChosenVariant]) -> Chain:
    stages = {stage.name: stage for stage in chain.stages}
    varied: set[str] = set()
    for choice in chosen:
        variant = choice.variant
        if choice.stage in varied:
            raise SchedsimError(
                f"stage {choice.stage!r} of {chain.name!r} is given two variants",
                hint="choose one of the two",
            )
        varied.add(choice.stage)
        if choice.stage not in stages or not isinstance(variant, StageVariant):
            raise SchedsimError(
                f"variant {variant.name!r} is of {choice.stage!r}, which {chain.name!r} lacks",
                hint="give the workload that the plan was made for",
            )
        stages[choice.stage] = with_variant(stages[choice.stage], variant)
    return replace(chain, stages=tuple(stages[stage.name] for stage in chain.stages))


def with_variant(stage: Stage, variant: StageVariant) -> Stage:
    """`stage` with the bundle of `variant`."""
    changes: dict[str, Any] = {"saved_bytes": variant.saved_bytes, "variants": ()}
    if variant.extra_s:
        changes["backward_s"] = stage.backward_s + variant.extra_s
    for name in ("backward_workspace_bytes", "saving_workspace_bytes"):
        if (size := getattr(variant, name)) is not None:
            changes[name] = size
    return replace(stage, **changes)


def _resolved_graph(graph: Graph, variants: Sequence[Variant]) -> Graph:
    known = set(graph.op_names)
    instead: dict[str, dict[str, str]] = {}
    writes: dict[str, dict[str, int]] = {}
    added: list[Op] = []
    for i, variant in enumerate(variants):
        missing = [
            op
            for table in (getattr(variant, "instead", {}), getattr(variant, "writes", {}))
            for op in table
            if op not in known
        ]
        if missing or not isinstance(variant, GraphVariant):
            what = missing[0] if missing else "a stage"
            raise SchedsimError(
                f"variant {variant.name!r} is of {what!r}, which {graph.name!r} lacks",
                hint="give the workload that the plan was made for",
            )
        for other in variants[:i]:
            if variant.excludes(other):  # type: ignore[arg-type]
                raise SchedsimError(
                    f"variants {other.name!r} and {variant.name!r} change the same tensor",
                    hint="choose one of the two",
                )
        for name, table in variant.instead.items():
            instead.setdefault(name, {}).update(table)
        for name, sizes in variant.writes.items():
            writes.setdefault(name, {}).update(sizes)
        added += variant.adds
    ops = []
    for op in graph.ops:
        if op.name in instead or op.name in writes:
            op = _changed(op, instead.get(op.name, {}), writes.get(op.name, {}))
        ops.append(op)
    return replace(graph, ops=tuple(_placed(ops, added, graph.inputs)), variants=())


def _changed(op: Op, instead: Mapping[str, str], writes: Mapping[str, int]) -> Op:
    reads = dict.fromkeys(instead.get(tensor, tensor) for tensor in op.reads)
    reads.pop("", None)
    # A tensor that only the backward reads is optional: a forward run that keeps nothing does not
    # materialise it.
    optional = (*op.optional, *writes) if op.phase == "forward" else op.optional
    in_place = {output: source for output, source in op.in_place.items() if source in reads}
    return replace(
        op, reads=tuple(reads), writes={**op.writes, **writes}, optional=optional, in_place=in_place
    )


def _placed(ops: list[Op], added: Sequence[Op], inputs: Mapping[str, int]) -> list[Op]:
    """`ops` with `added` inserted: encoders as early, decoders as late as possible."""
    after: dict[int, list[Op]] = {}
    before: dict[int, list[Op]] = {}
    written = {tensor: i for i, op in enumerate(ops) for tensor in op.writes}
    read = {}
    for i in range(len(ops) - 1, -1, -1):
        read.update(dict.fromkeys(ops[i].reads, i))
    for op in added:
        if op.phase == "forward":
            at = max((written.get(tensor, -1) for tensor in op.reads), default=-1)
            after.setdefault(at, []).append(op)
            written.update(dict.fromkeys(op.writes, at))
        else:
            at = min((read.get(tensor, len(ops)) for tensor in op.writes), default=len(ops))
            before.setdefault(at, []).append(op)
    found = list(after.get(-1, ()))
    for i, op in enumerate(ops):
        found += [*before.get(i, ()), op, *after.get(i, ())]
    return [*found, *before.get(len(ops), ())]
