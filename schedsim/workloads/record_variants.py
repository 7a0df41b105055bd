"""Variants of formula workloads: other tensors that the ops of a stage may save, with roofline
times.

Integers of b bits come in groups of `GROUP` elements, with a scale and a zero point of 16 bits for
each group. Encoders and decoders are ops like any other: they read one form and write the other, so
their time is memory traffic, and their working set is found with that of the stage.

Sources: the two bits of ReGELU2 and the shared input of MS-LN come from Yang et al., ICML 2024,
Approx-BP and MS-BP (arXiv 2406.16282).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from .devices import DTYPE_BYTES
from .ops import OpRecord, StageRecord

GROUP = 256
_GROUP_BYTES = 4

# Name -> (kind, bits per element); lower precisions have no groups.
ENCODINGS = {"int8": ("quantize", 8), "int4": ("quantize", 4), "low": ("precision", 0)}
_LOWER = {"fp32": ("bf16", 16), "fp16": ("fp8", 8), "bf16": ("fp8", 8)}

# Operations per element: for encoding (range, scaling, rounding), and for decoding (scaling back).
ENCODE_FLOPS, DECODE_FLOPS = 4, 2


@dataclass(frozen=True, slots=True)
class RecordVariant:
    """A variant of a stage's records; tensors have their names in the stage, as in `OpRecord`.

    Attributes
    ----------
    forward, backward
        Ops to add: an encoder goes behind the op whose output it reads, a decoder before its first
        reader.
    instead, writes
        As in `schedsim.dataflow.variants.GraphVariant`.
    """

    name: str
    kind: str
    forward: tuple[OpRecord, ...] = ()
    backward: tuple[OpRecord, ...] = ()
    instead: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    writes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def apply_variant(stage: StageRecord, variant: RecordVariant) -> StageRecord:
    """`stage` with `variant`; O(ops)."""
    forward = [_changed(op, variant) for op in stage.forward]
    for op in variant.forward:
        at = max(i for i, other in enumerate(forward) if set(op.reads) & set(other.writes))
        forward.insert(at + 1, op)
    backward = [_changed(op, variant) for op in stage.backward]
    for op in variant.backward:
        at = min(i for i, other in enumerate(backward) if set(op.writes) & set(other.reads))
        backward.insert(at, op)
    return replace(stage, forward=tuple(forward), backward=tuple(backward))


def _changed(op: OpRecord, variant: RecordVariant) -> OpRecord:
    instead, writes = variant.instead.get(op.name, {}), variant.writes.get(op.name, {})
    if not instead and not writes:
        return op
    reads = tuple(dict.fromkeys(instead.get(tensor, tensor) for tensor in op.reads))
    return replace(
        op, reads=reads, writes={**op.writes, **writes}, optional=(*op.optional, *writes)
    )


def exact_or_approximate(
    stage: StageRecord, allow: Collection[str], dtype: str
) -> list[RecordVariant]:
    """Variants in which an op saves another tensor, not the same one encoded: ReGELU2 and MS-LN."""
    element = DTYPE_BYTES[dtype]
    sizes = {tensor: size for op in stage.forward for tensor, size in op.writes.items()}
    backward = {op.name: op for op in stage.backward}
    found = []
    for op in stage.forward:
        kind = op.name.rsplit(".", 1)[-1]
        reverse = backward.get(f"{op.name}'")
        if reverse is None:
            continue
        if kind == "gelu" and "approx" in allow:
            (source,) = op.reads
            bits = f"{source}.bits"
            found.append(
                RecordVariant(
                    f"regelu2 {op.name}",
                    "approx",
                    instead={reverse.name: {source: bits}},
                    writes={op.name: {bits: -(-sizes[source] // element // 4)}},
                )
            )
        if kind == "norm" and "share" in allow:
            source, (output,) = op.reads[0], op.writes
            if source in reverse.reads:
                table = {reverse.name: {source: output}}
                found.append(RecordVariant(f"ms-norm {op.name}", "share", instead=table))
    return found


def encodings(allow: Collection[str], dtype: str) -> Iterator[tuple[str, str, int]]:
    """(name, kind, bits) of the encodings allowed for elements of `dtype`."""
    for name, (kind, bits) in ENCODINGS.items():
        if kind in allow:
            yield (
                (*_LOWER[dtype][:1], kind, _LOWER[dtype][1])
                if name == "low"
                else (
                    name,
                    kind,
                    bits,
                )
            )


def encoded_bytes(size: int, element: int, kind: str, bits: int) -> int:
    """Bytes of a tensor of `size` bytes once encoded.

    Examples
    --------
    >>> encoded_bytes(2048, 2, "quantize", 8), encoded_bytes(2048, 2, "precision", 8)
    (1040, 1024)
    """
    count = size // element
    groups = -(-count // GROUP) * _GROUP_BYTES if kind == "quantize" else 0
    return -(-count * bits // 8) + groups


def encoded(stage: StageRecord, name: str, kind: str, bits: int, dtype: str) -> RecordVariant:
    """All inner tensors that the stage keeps for its backward, encoded; not masks or statistics."""
    element = DTYPE_BYTES[dtype]
    optional = {tensor for op in stage.forward for tensor in op.optional}
    readers: dict[str, list[OpRecord]] = {}
    for op in stage.backward:
        for tensor in op.reads:
            readers.setdefault(tensor, []).append(op)
    forward, backward = [], []
    instead: dict[str, dict[str, str]] = {}
    for op in stage.forward:
        for tensor, size in op.writes.items():
            if tensor == "out" or tensor in optional or tensor not in readers:
                continue
            small = {f"{tensor}.{name}": encoded_bytes(size, element, kind, bits)}
            count = size // element
            forward.append(
                OpRecord(
                    f"{name} {tensor}", (tensor,), small, ENCODE_FLOPS * count, 0, tuple(small)
                )
            )
            back = {f"{tensor}.again": size}
            backward.append(OpRecord(f"{name}' {tensor}", tuple(small), back, DECODE_FLOPS * count))
            for reader in readers[tensor]:
                instead.setdefault(reader.name, {})[tensor] = f"{tensor}.again"
    return RecordVariant(name, kind, tuple(forward), tuple(backward), instead)


def stage_variants(
    stage: StageRecord, allow: Collection[str], dtype: str
) -> Iterator[tuple[str, str, StageRecord]]:
    """(name, kinds joined by ``+``, records) of each variant of `stage`."""
    special: dict[str, list[RecordVariant]] = {}
    for variant in exact_or_approximate(stage, allow, dtype):
        special.setdefault(variant.name.split()[0], []).append(variant)
    names = list(special)
    for count in range(len(names) + 1):
        for chosen in combinations(names, count):
            changed = stage
            parts = [variant for name in chosen for variant in special[name]]
            for variant in parts:
                changed = apply_variant(changed, variant)
            kinds = [variant.kind for variant in parts]
            if chosen:
                yield "+".join(chosen), _joined(kinds), changed
            for name, kind, bits in encodings(allow, dtype):
                variant = encoded(changed, name, kind, bits, dtype)
                if variant.forward:
                    small = apply_variant(changed, variant)
                    yield "+".join([*chosen, name]), _joined([*kinds, kind]), small


def _joined(kinds: Iterable[str] | Sequence[str]) -> str:
    return "+".join(dict.fromkeys(kinds))
